"""Gives each config of a rotation that turns knobs of the loader a loader of its own, which holds still between turns.

The script goes on iterating its own loader. In a turn of such a config it is given what the config's loader made of the
same data, by indices that the script's sampler gave: one more of them is taken with each batch, so that an epoch has
the batches that it has as written. What a config's workers have asked for ahead was given out shortly before. Other
data than those it was made for end a config's turns.

Workers are stopped as soon as the turn is over: nothing fills their queue meanwhile, and they take no core from others.
"""

from __future__ import annotations

import atexit
import copy
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..patches import patch
from ..records import LoaderStarted, Value
from ..session import Session
from ..sources import TrainingSources
from .batches import tensors_of
from .loader_places import Loader
from .loader_workers import (
    Lock,
    continue_workers,
    kill_workers,
    machine_memory,
    private_bytes,
    shared_memory,
    stop_workers,
    workers_of,
)
from .own_data import CHANGED, DataWatch, obstacle
from .script_indices import Feed, ScriptIndices
from .starting import said_to_fork
from .types import DataLoader, LoaderIterator, Result, WorkersIterator

KNOBS = ("num_workers", "prefetch_factor", "pin_memory")
MOST_WORKERS = 64
"""Of all configs together: each takes half a dozen of this process's descriptors, of which 1024 are usual."""
WORKER_BYTES = 64 << 20
"""What a worker takes by itself at least; as much as the largest one took where that was more."""
SPARED_SHARE = 0.1
"""Of the machine's memory, that has to be free beside a config's workers."""
Config = Mapping[str, Value]
Referring = Callable[[LoaderIterator], DataLoader | None]


@dataclass
class _Own:
    """A config's loader: its newest ``iterator`` lives as long as the config has turns. ``begun_s``: what its making
    took, None once its first batch has come. ``source``: the loaders of the script that it stands for. ``respawns``:
    see ``LoaderStarted``. ``failure``: why it gives no more.
    """

    iterator: Any
    source: Loader | None
    feed: Feed
    workers: int
    respawns: bool
    begun_s: float | None
    failure: str = ""


class OwnLoaders:
    """The loaders of a rotation's configs. ``loader_of``, ``dropped``: see ``ScriptIndices``."""

    def __init__(
        self,
        session: Session,
        torch: ModuleType,
        sources: TrainingSources[Loader],
        loader_of: Referring,
        dropped: Callable[[LoaderIterator], None],
    ) -> None:
        self._session = session
        self._torch: Any = torch
        self._sources = sources
        self._loader_of = loader_of
        self._own: dict[tuple[tuple[str, Value], ...], _Own] = {}
        self._now: _Own | None = None
        self._config: Config = {}
        self.indices = ScriptIndices(torch, loader_of, dropped)
        self._data: DataWatch | None = DataWatch()
        """None once there are no more turns."""
        self._last: Callable[[], DataLoader | None] = lambda: None
        self._largest = self._batch_bytes = 0
        self._stopped: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()
        self._locked: set[Lock] = set()

    def install(self) -> None:
        """Patches how workers are ended: one that is stopped would not hear of it."""
        iterators = sys.modules["torch.utils.data.dataloader"]._MultiProcessingDataLoaderIter
        patch(iterators, "_shutdown_workers", self._shutdown)

    def _shutdown(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def _shutdown_workers(iterator: LoaderIterator) -> Result:
            if self._session.here:
                continue_workers(iterator)
            return original(iterator)

        return _shutdown_workers

    def _stop(self, iterator: LoaderIterator | None) -> None:
        if iterator is not None:
            stop_workers(iterator, self._locked)
            self._stopped.add(iterator)

    def _go_on(self, iterator: LoaderIterator | None) -> None:
        if iterator is not None:
            continue_workers(iterator)
            self._stopped.discard(iterator)

    # what can be had

    def refusal(self, config: Config) -> str:
        """Why the config can't have a loader of its own here, continuing a sentence; "" where it can or needs none."""
        wanted = [knob for knob in KNOBS if knob in config]
        if not wanted:
            return ""
        entry, loader = self._sources.primary, self._loader()
        if entry is None or loader is None:
            return "no DataLoader is seen to train"
        if type(loader) is not self._torch.utils.data.DataLoader:
            return f"{type(loader).__name__} is no plain DataLoader, and may do anything"
        if not entry.map_style:
            return "its data are a stream, which another loader would begin anew"
        if len(self._sources.training()) > 1:
            return "it trains from several loaders"
        if self._sources.wait_is_hidden:
            return "a thread fetches its batches ahead"
        if not getattr(loader, "in_order", True):
            return "its batches come in no order"
        if self._data is not None and self._data.changed:
            return CHANGED
        return _refused(entry, config) or self.indices.refusal(loader) or obstacle(loader)

    def _loader(self) -> DataLoader | None:
        """The script's own; None where none was seen, or it is gone."""
        iterator = self._written()
        loader = self._loader_of(iterator) if iterator is not None else None
        if loader is not None:
            self._last = weakref.ref(loader)
        return self._last()

    def _written(self) -> LoaderIterator | None:
        """The script's own iterator."""
        return self._sources.primary.newest() if self._sources.primary is not None else None

    # turns

    def hold(self) -> None:
        """The turn is over: whatever makes batches for it stops."""
        self._stop(self.serving)

    def to(self, config: Config) -> None:
        """The config has its turn, after ``hold``. Its loader is made where it has none. Raises what its making does,
        and ``MemoryError`` where there is no room for it.
        """
        self._now, self._config = None, config
        if any(knob in config for knob in KNOBS):
            key = _key(config)
            if key not in self._own:
                self._own[key] = self._made(config)
            if not self._own[key].failure:
                self._now = self._own[key]
        self._go_on(self.serving)

    @property
    def serving(self) -> LoaderIterator | None:
        """What gives the script its batches now."""
        return self._now.iterator if self._now is not None else self._written()

    def doubt(self, config: Config) -> str:
        """What of the config's loader isn't as it has to be, or ""."""
        own, entry = self._own.get(_key(config)), self._sources.primary
        if own is None or entry is None:
            return ""
        told = own.failure or _refused(entry, config)  # what was seen of the data since it has its loader
        if told:
            return told
        alive = sum(worker.is_alive() for worker in workers_of(own.iterator))
        self._largest = max([self._largest, *(private_bytes(worker.pid) for worker in workers_of(own.iterator))])
        return f"{alive} of its {own.workers} workers live" if alive != own.workers else ""

    def leave(self, config: Config) -> None:
        """The config has no more turns: its workers end."""
        own = self._own.pop(_key(config), None)
        if own is not None:
            _end(own)
            if own is self._now:
                self._now = None
                self._go_on(self._written())

    def end(self) -> None:
        """There are no more turns: the script has its own loader, and all other workers end."""
        if not self._session.here:
            return
        self._now = self._data = None
        for own in self._own.values():
            _end(own)
        self._own.clear()
        for iterator in list(self._stopped):
            self._go_on(iterator)

    # what the script asks for

    @contextmanager
    def beginning(self, loader: DataLoader) -> Iterator[None]:
        """The script begins to iterate its own loader anew: workers of it that last have to answer. Where the data are
        others than before, those that read them for configs end.

        What the start takes counts for no config, and so none makes batches meanwhile.
        """
        self._look_at_data(loader)
        if self._now is not None:
            self._stop(self._now.iterator)
            self._go_on(self._written())
        try:
            yield
            self.indices.begins_anew(self._written())
        finally:
            if self._now is not None:
                self._stop(self._written())
                self._go_on(self._now.iterator)

    def rest(self) -> None:
        """The script validates, until it asks for a batch to train on: that counts for no config either."""
        if self._now is not None and self._now.iterator not in self._stopped:
            self._stop(self._now.iterator)

    def _look_at_data(self, loader: DataLoader) -> None:
        if self._data is None or self._data.changed:
            return
        self._data.look(loader)
        if self._data.changed:
            self._fail_all(CHANGED)

    def _fail_all(self, reason: str) -> None:
        for own in self._own.values():
            own.failure = own.failure or reason
            _end(own)
        self._now = None
        self._go_on(self._written())

    def fetch(
        self, original: Callable[[LoaderIterator], Result], iterator: LoaderIterator
    ) -> tuple[LoaderIterator, Result]:
        """What the script gets as it asks this iterator of its own for a batch, and from which one it comes.

        Raises ``StopIteration`` where the script's epoch ends. A config's loader that fails gives no more: then the
        batch comes from the script's own, as in the rest of the turn.
        """
        if self._now is not None and self._now.source is not self._sources.primary:
            self._fail_all("another loader of the script trains by now")
        own = self._now
        if own is None:
            batch = self.indices.own_batch(original, self._awake(iterator))
            if not self._batch_bytes:
                tensors: list[Any] = [*tensors_of(self._torch, batch)]
                self._batch_bytes = sum(int(each.nbytes) for each in tensors if each.device.type == "cpu")
            return iterator, batch
        with self._held_at_a_start(own):
            taken = self.indices.take(iterator)
        if taken is None:
            batch = self.indices.own_batch(original, self._awake(iterator))
            self._stop(iterator)
            return iterator, batch
        own.feed.due.extend(taken)
        began = time.perf_counter()
        try:
            batch = original(self._awake(own.iterator))
        except Exception as error:  # of its workers, or of the script's own data in them
            name, text = type(error).__name__, (str(error).strip().splitlines() or [""])[-1]
            own.failure = f"its loader failed: {text if text.startswith(name) else f'{name}: {text}'}"
            _end(own)
            self._now = None
            self.indices.put_back(iterator, taken)
            return iterator, self.indices.own_batch(original, self._awake(iterator))
        if own.begun_s is not None:
            seconds, own.begun_s = own.begun_s + time.perf_counter() - began, None
            self._session.recorder.emit(LoaderStarted(self._config, seconds, own.workers, own.respawns))
        return own.iterator, batch

    @contextmanager
    def _held_at_a_start(self, own: _Own) -> Iterator[None]:
        """An epoch's first index, for which samplers draw its whole order: a part of the start, as in ``beginning``."""
        starts = own.source is not None and own.source.is_beginning
        if starts:
            self._stop(own.iterator)
        try:
            yield
        finally:
            if starts:
                self._go_on(own.iterator)

    def _awake(self, iterator: LoaderIterator) -> LoaderIterator:
        """One that may be stopped: in a validation, or the script's own as another one's outer loop."""
        if iterator in self._stopped:
            self._go_on(iterator)
        return iterator

    # making

    def _made(self, config: Config) -> _Own:
        loader = self._loader()
        if loader is None or not self.indices.before:
            raise RuntimeError("its loader has not been asked for a whole batch yet")
        if self._data is not None and not self._data.has_looked:
            self._data.look(loader)
        refused = obstacle(loader) or (CHANGED if self._data is not None and self._data.changed else "")
        if refused:
            raise RuntimeError(refused)
        workers = int(config.get("num_workers", getattr(loader, "num_workers", 0)))
        feed = Feed(self.indices.before)
        ahead = int(config.get("prefetch_factor", loader.prefetch_factor or 2)) if workers else None
        self._check_room(workers, workers * (ahead or 0) * self._batch_bytes)
        twin: Any = copy.copy(loader)
        own = vars(twin)
        own.update(
            num_workers=workers, prefetch_factor=ahead, pin_memory=config.get("pin_memory", loader.pin_memory),
            persistent_workers=False, _iterator=None, timeout=own["timeout"] if workers else 0,
            check_worker_number_rationality=lambda: None,  # it would warn of a number that isn't the script's
        )  # fmt: skip
        own["sampler" if own["batch_sampler"] is None else "batch_sampler"] = feed
        if workers and not getattr(loader, "num_workers", 0) and twin.multiprocessing_context is None:
            twin.multiprocessing_context = said_to_fork()
        if not self._own:
            atexit.register(self.end)  # before multiprocessing's own handler, which waits for workers
        began = time.perf_counter()
        with self._draws_kept(loader):
            iterator = twin._get_iterator()
        if workers:
            # PyTorch would have any step of the script raise what became of such a worker: it is its config's business.
            handling = sys.modules["torch.utils.data._utils.signal_handling"]
            handling._remove_worker_pids(id(iterator))
            vars(iterator)["_worker_pids_set"] = False
        respawns = workers > 0 and not loader.persistent_workers
        return _Own(iterator, self._sources.primary, feed, workers, respawns, time.perf_counter() - began)

    def _check_room(self, workers: int, batches_bytes: int) -> None:
        """``batches_bytes``: what lies ready of them at most. Of several ranks each is about to make as many."""
        ranks, alive = self._session.ranks, sum(own.workers for own in self._own.values())
        if alive + workers > MOST_WORKERS:
            raise MemoryError(f"its {workers} workers beside {alive} of other configs are too many at once")
        available, whole = machine_memory()
        taken = ranks * (workers * max(WORKER_BYTES, self._largest) + batches_bytes)
        if available - taken < SPARED_SHARE * whole:
            raise MemoryError(f"its {workers} workers don't fit into the machine's memory beside {alive} of others")
        if ranks * batches_bytes > shared_memory() / 2:
            raise MemoryError(f"what its {workers} workers prefetch doesn't fit into the shared memory that is left")

    @contextmanager
    def _draws_kept(self, loader: DataLoader) -> Iterator[None]:
        """What is drawn meanwhile, for workers' seeds, leaves the script's own random numbers as they are."""
        drawn_by: Any = loader.generator
        state, own = self._torch.get_rng_state(), drawn_by.get_state() if drawn_by is not None else None
        try:
            yield
        finally:
            self._torch.set_rng_state(state)
            if own is not None:
                drawn_by.set_state(own)


def _key(config: Config) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(config.items()))


def _refused(entry: Loader, config: Config) -> str:
    """Why the loader refuses one of the config's values, or ""."""
    return next((entry.refused[knob] for knob in KNOBS if knob in config and knob in entry.refused), "")


def _end(own: _Own) -> None:
    """Ends its workers, at once: one that was stopped may hold a lock that an orderly end asks for."""
    if isinstance(own.iterator, WorkersIterator):
        vars(own.iterator)["_shutdown"] = True
        pinning = vars(own.iterator).get("_pin_memory_thread_done_event")
        if pinning is not None:
            pinning.set()
    kill_workers(own.iterator)
    for worker in workers_of(own.iterator):
        worker.join(1.0)
