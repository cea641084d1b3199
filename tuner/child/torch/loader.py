"""PyTorch's DataLoader: which one trains, what it was given, what it gives, how long it keeps the script waiting."""

from __future__ import annotations

import inspect
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType

from ..call_sites import inside_library, user_stack
from ..counts import EpochUse
from ..evidence import SetBy
from ..identities import ByIdentity
from ..patches import patch
from ..records import ProbeSide, Unstepped, Value
from ..session import Session
from ..sources import TrainingSources
from . import starting
from .batches import asked_for, is_on_device, is_pinned, leading_dimension, ready_rows, shows_one, tokens_of
from .copies import KEPT, CopyWatch, refusals
from .datasets import length, shards_itself
from .fetching import FetchWaits, unwatched
from .lasting import LastingWorkers
from .loader_places import LOADER_KNOBS, Fetched, Loader, as_written, by_name, drop_for_none, other_size, stands_for
from .made_iterators import MadeIterators
from .own_loaders import OwnLoaders
from .phases import Phases
from .queues import ready_batches
from .samplers import SamplerWatch
from .types import Arguments, DataLoader, LoaderIterator, Result, WorkersIterator

BatchListener = Callable[[str, object, int], None]
"""Is called with a loader's key, a batch that it gave, and its samples."""
Referred = Callable[[], DataLoader | None]
UNSHARED = "an iterable dataset that isn't seen to ask which worker it is in, and of how many"
ONE_ITEM = "its batches are single items of the dataset, and nothing shows that several would all be trained on"
MOST_AT_PLACE = 64
"""Loaders of one place that are told apart: a script may make one for each of its rollouts, each of another length."""


class LoaderWatch:
    """Patches DataLoader: overrides at construction, counts and times at iteration."""

    def __init__(self, session: Session, torch: ModuleType, on_batch: BatchListener) -> None:
        self.session = session
        self.torch = torch
        known = session.request.knowledge.training_loaders
        self.sources: TrainingSources[Loader] = TrainingSources(
            session.clock, known, lambda: session.may_be_of("torch") or session.feeds.is_there,
            on_unstepped=lambda batches: session.recorder.emit(Unstepped(batches)),
        )  # fmt: skip
        self.sources.reader = session.feeds
        self._on_batch = on_batch
        self._copies = CopyWatch(session.note)
        self._samplers, self.phases = SamplerWatch(), Phases(session)
        self._lasting = LastingWorkers(torch, self._lasts, self._copies)
        self._of_object: ByIdentity[Loader] = ByIdentity()
        self._queues: weakref.WeakKeyDictionary[LoaderIterator, list[int]] = weakref.WeakKeyDictionary()
        self._loader_of: weakref.WeakKeyDictionary[LoaderIterator, Referred] = weakref.WeakKeyDictionary()
        self._waits = FetchWaits(session, torch)
        self._made = MadeIterators(session, torch, self.sources, self._of_object)
        rotates = session.measuring and session.request.rotation
        self.own = OwnLoaders(session, torch, self.sources, self._loader, self._dropped) if rotates else None
        """The loaders of a rotation's configs; None where there is no rotation."""

    def install(self) -> None:
        """Patches what the mode needs: under "apply" only the construction, and only if a knob asks for it."""
        data = self.torch.utils.data
        wanted = any(self.session.knobs.wants(knob) for knob in (*LOADER_KNOBS, "grad_accumulation"))
        if self.session.measuring or wanted or self.session.request.config.get("num_workers") == 0:
            patch(data.DataLoader, "__init__", self._init)
            patch(data.DataLoader, "__iter__", self._iter)
        if self.session.knobs.wants("num_workers"):
            patch(data.DataLoader, "check_worker_number_rationality", self._check_workers)
        base = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
        if self.session.measuring:
            patch(base, "__next__", lambda original: self._next(self._lasting.noting_ends(original)))
            patch(base, "_next_index", self._next_index)
            self._made.install(base)
        if starting.may_last(self.session):
            self._lasting.install(base)
        if self.own is not None:
            self.own.install()

    def install_stateful(self, module: ModuleType) -> None:
        """Patches torchdata's loader, which makes itself without PyTorch's constructor; its iterators are PyTorch's."""
        wanted = [k for k in LOADER_KNOBS if self.session.knobs.wants(k)]
        if self.session.measuring or wanted:
            patch(module.StatefulDataLoader, "__init__", self._init)
            patch(module.StatefulDataLoader, "__iter__", self._iter)

    @property
    def prefetch_capacity(self) -> int:
        """Batches that can lie ready: a window shorter than this measures a queue that was filled before."""
        live = self.sources.primary.live if self.sources.primary is not None else {}
        return int(live.get("num_workers") or 0) * int(live.get("prefetch_factor") or 0)

    def ready_samples(self) -> float | None:
        """Samples that lie ready for the training loop; None where that can't be seen."""
        primary = self.sources.primary
        newest = primary.newest() if primary is not None else None
        anew = primary is not None and primary.later_starts > 0
        ready = ready_batches(newest, anew=anew) if self.own is None else ready_batches(self.own.serving)
        return None if ready is None or primary is None else float(ready * primary.usual_size)

    def take_waits(self) -> float:
        """As ``FetchWaits.take``."""
        return self._waits.take()

    def epoch(self) -> EpochUse | None:
        """What an epoch of the training data is, and begins with; None where its length isn't known."""
        primary = self.sources.primary
        iterator = primary.newest() if primary is not None else None
        loader = self._loader(iterator) if iterator is not None else None
        if primary is None or loader is None or not primary.map_style or primary.first_start_s is None:
            return None
        batches = length(loader)
        if not batches:
            return None
        workers = int(primary.live.get("num_workers") or 0)
        later_s = primary.later_start_s / max(1, primary.later_starts)
        return EpochUse(
            batches, float(batches * primary.usual_size), workers, primary.first_start_s, primary.later_starts, later_s,
            respawns=primary.respawns(batches), taken=primary.taken_of(batches),
        )  # fmt: skip

    # construction

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def __init__(loader: DataLoader, *args: object, **kwargs: object) -> None:
            try:
                bound = signature.bind(loader, *args, **kwargs)
            except TypeError:
                original(loader, *args, **kwargs)  # raises the script's own TypeError
                return
            if not self.session.here:
                original(loader, *args, **kwargs)
                return
            given = dict(bound.arguments)
            entry = self._register(loader, given)
            if self._is_training(entry, given):
                self._override(entry, given)
            elif self.session.request.config.get("num_workers") == 0:
                drop_for_none(given)  # the script's own option may have taken its other loaders' workers, too
            starting.fork_added(self.session, entry, given)
            original(**by_name(signature, given))

        return __init__

    def _check_workers(self, original: Callable[..., None]) -> Callable[..., None]:
        """PyTorch warns of more workers than cores, and a script may make that an error: not of a number of ours."""

        def check(loader: DataLoader) -> None:
            entry = self._of_object.get(loader)
            if entry is None or "num_workers" not in entry.changed:
                original(loader)

        return check

    def _register(self, loader: DataLoader, given: Arguments) -> Loader:
        dataset = given.get("dataset")
        stack = user_stack()
        entry = self._known_entry(stack, dataset, given)
        if entry is None:
            key = f"{stack}#{len(self.sources.at(stack))}"
            entry = self.sources.add(
                Loader(key, stack, written=as_written(given), refused=self._refusals(loader, given))
            )
            entry.map_style = not isinstance(dataset, self.torch.utils.data.IterableDataset)
            entry.dataset_len = length(dataset) if entry.map_style else None
            starting.look_at(self.session, entry, given)
        entry.is_made(self.torch, loader, given)
        self._of_object[loader] = entry
        return entry

    def _known_entry(self, stack: str, dataset: object, given: Arguments) -> Loader | None:
        """The loader that this one stands for: the same data wrapped by a library, or the same line an epoch later."""
        # accelerate, Fabric and Lightning make a loader anew around the same dataset: it stays the same loader.
        if inside_library() and (wrapped := stands_for(self.sources, given)) is not None:
            return wrapped
        made_here = self.sources.at(stack)
        for entry in made_here:
            if entry.iterated and entry.written == as_written(given):
                alike = entry.map_style and entry.dataset_len == length(dataset)
                if alike or entry.dataset() is dataset:
                    return entry
        return made_here[-1] if len(made_here) >= MOST_AT_PLACE else None

    def entry_of(self, loader: object) -> Loader | None:
        """What is known of a loader that was made here; None of anything else."""
        return self._of_object.get(loader)

    def _is_training(self, entry: Loader, given: Arguments) -> bool:
        if self.sources.known:
            return entry.key in self.sources.known
        # Without a baseline's knowledge (a profile applied to a changed script) training shows by its shuffling.
        sampler = type(given.get("sampler")).__name__
        return bool(given.get("shuffle")) or "Random" in sampler or "Distributed" in sampler

    def _refusals(self, loader: DataLoader, given: Arguments) -> dict[str, str]:
        data = self.torch.utils.data
        refused: dict[str, str] = {}
        if hasattr(loader, "load_state_dict"):
            reason = "the loader's checkpoints hang on it: one with another value can't be loaded"
            refused["num_workers"] = refused["batch_size"] = reason
        batch_sampler = given.get("batch_sampler")
        if batch_sampler is not None and type(batch_sampler) is not data.BatchSampler:
            refused["batch_size"] = f"the script batches by its own {type(batch_sampler).__name__}"
        elif batch_sampler is None and given.get("batch_size", 1) is None:
            refused["batch_size"] = "the dataset makes its batches itself (batch_size=None)"
        dataset = given.get("dataset")
        if isinstance(dataset, data.IterableDataset) and not shards_itself(dataset):
            # A pipeline may share the data out in a step of its own, as WebDataset's does.
            has_workers = bool(given.get("num_workers"))
            reason = UNSHARED if has_workers else f"{UNSHARED}: every worker would repeat the data"
            refused["num_workers"] = refused["persistent_workers"] = reason
            refused.update({} if has_workers else {"prefetch_factor": reason})
        return {**refusals(given, self.session.note), **other_size(self.session, given), **refused}

    def _override(self, entry: Loader, given: Arguments) -> None:
        values = self.values_for(entry)
        for knob in LOADER_KNOBS:
            if knob not in values or knob in entry.refused:
                continue
            old = given.get("batch_sampler") if knob == "batch_size" else None
            if old is not None and type(old) is not self.torch.utils.data.BatchSampler:
                continue  # a library's own, around the sampler of the loader that was changed already
            if old is not None:
                given["batch_sampler"] = type(old)(old.sampler, int(values[knob]), old.drop_last)
            else:
                given[knob] = values[knob]
            entry.changed.add(knob)
        starting.add_workers(self.session, entry, given, values)
        drop_for_none(given)

    def values_for(self, entry: Loader) -> dict[str, Value]:
        """What a training loader is given. Of a batch that is computed in parts it makes the whole."""
        knobs, config = self.session.knobs, self.session.request.config
        values = {knob: config[knob] for knob in LOADER_KNOBS if knobs.wants(knob)}
        parts, size = knobs.wanted("grad_accumulation"), config.get("batch_size", entry.written["batch_size"])
        if knobs.set_by("batch_size") is SetBy.PATCH and type(parts) is int and type(size) is int:
            values["batch_size"] = size * parts
        return values

    # iteration

    def _iter(self, original: Callable[..., LoaderIterator]) -> Callable[..., LoaderIterator]:
        def __iter__(loader: DataLoader) -> LoaderIterator:
            entry = self._of_object.get(loader)
            if entry is None or not self.session.here:
                return original(loader)
            if entry is self.sources.primary:
                self.sources.fetch_begins(entry)
            own = self.own if entry is self.sources.primary else None
            with own.beginning(loader) if own is not None else nullcontext():
                began = time.perf_counter()
                with starting.starting(entry):
                    iterator = self._lasting.begin(loader, original)
                self.sources.iteration_began(entry, time.perf_counter() - began)
                self.phases.begins(entry, iterator)
                if self.session.measuring:
                    self._look_at(entry, loader, self._made.within(loader, iterator))
            return iterator

        return __iter__

    def _lasts(self, loader: DataLoader) -> bool:
        """Whether its workers last by the config alone."""
        entry = self._of_object.get(loader)
        return entry is not None and "persistent_workers" in entry.changed and not entry.written["persistent_workers"]

    def _look_at(self, entry: Loader, loader: DataLoader, iterator: LoaderIterator) -> None:
        self._of_object[iterator] = entry
        queue = self._queues.get(iterator)
        if queue and isinstance(iterator, WorkersIterator):
            # Workers that last left batches of the epoch before, where the script broke it off.
            del queue[: max(0, len(queue) - (iterator._send_idx - iterator._rcvd_idx))]
        # A loader whose workers stay holds its iterator: held from here, neither would ever go. Others are held, as
        # a script may not hold them: "for batch in DataLoader(...)". One side of the loop alone begins its loader anew.
        stays = getattr(loader, "_iterator", None) is iterator and self.session.request.probe is None
        self._loader_of[iterator] = weakref.ref(loader) if stays else lambda: loader
        entry.begins_with(loader, iterator)
        workers = getattr(iterator, "_workers", None) or []
        entry.live.update(
            num_workers=sum(1 for worker in workers if worker.is_alive()), prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers, pin_memory=loader.pin_memory,
        )  # fmt: skip

    def _loader(self, iterator: LoaderIterator) -> DataLoader | None:
        """The loader of an iterator; None where it is gone, or was never seen."""
        return self._loader_of.get(iterator, lambda: None)()

    def _next_index(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def _next_index(iterator: LoaderIterator) -> Result:
            entry = self._of_object.get(iterator)
            index = self._samplers.ask(original, iterator, self._loader(iterator), entry)
            if self.own is not None and entry is not None and entry is self.sources.primary:
                self.own.indices.given_out(iterator, index)
            # A sampler's batch may be any sequence; without one the index is the dataset's own, and it makes the batch.
            makes_batches = getattr(iterator, "_auto_collation", True)
            self._queues.setdefault(iterator, []).append(asked_for(index) if makes_batches else 0)
            return index

        return _next_index

    def _next(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def __next__(iterator: LoaderIterator) -> Result:
            if not self.session.here:
                return original(iterator)
            self.session.check_stop()
            entry = self._of_object.get(iterator) or self._made.past_iter(iterator, self._look_at)
            if entry is None:
                return original(iterator)
            if self.session.clock.instruments.off and entry is self.sources.primary:
                return unwatched(self.torch, original, iterator, entry, self._samples_of)
            self.sources.fetch_begins(entry)
            if self.own is not None and self.session.clock.validating and entry is not self.sources.primary:
                self.own.rest()
            if self.session.request.probe and entry.key in self.sources.known and not self.sources.is_fed_here:
                return self._probe(original, iterator, entry)
            is_marked = self._is_marked(entry)
            try:
                fetched, wait_s = self._waits.of(lambda: self._timed(original, iterator, entry), marked=is_marked)
            except StopIteration:
                entry.ended = True
                raise
            self.sources.fetched(entry, fetched.samples, wait_s, fetched.tokens, fetched.wait_s)
            return fetched.batch

        return __next__

    def _dropped(self, iterator: LoaderIterator) -> None:
        """The script doesn't get the batch that its iterator was to give next."""
        if queue := self._queues.get(iterator):
            queue.pop(0)

    def _is_marked(self, entry: Loader) -> bool:
        """Whether the device tells how long the loop waits for it. An epoch's first batch is waited for in full."""
        hidden = self.sources.wait_is_hidden or self.sources.reader.is_there  # or another framework computes
        return self.sources.is_training(entry) and not entry.is_beginning and not hidden

    def _probe(self, original: Callable[..., Result], iterator: LoaderIterator, entry: Loader) -> Result:
        """One side of the loop by itself."""
        self.session.is_probed = True
        if self.session.request.probe is ProbeSide.COMPUTE:

            def fetch() -> tuple[Result, int]:
                batch = original(iterator)
                return batch, self._samples_of(entry, iterator, batch)

            return self.sources.first_again(entry, fetch)
        newest = iterator

        def fetch_on() -> tuple[int, float]:
            nonlocal newest
            while True:
                try:
                    return self._timed(original, newest, entry)[1:3]
                except StopIteration:
                    if (loader := self._loader(newest)) is None:
                        raise
                    newest = iter(loader)

        return self.sources.drain(entry, fetch_on, lambda: self.session.step(self.session.trained_by or "torch"))

    def _timed(self, original: Callable[..., Result], iterator: LoaderIterator, entry: Loader) -> Fetched[Result]:
        began = time.perf_counter()
        if self.own is not None and entry is self.sources.primary:
            iterator, batch = self.own.fetch(original, iterator)
        else:
            batch = self._copies.fetch(original, iterator, self._loader(iterator))
        wait_s = time.perf_counter() - began
        count = self._samples_of(entry, iterator, batch)
        loader = None if entry.live.get("num_workers") else self._loader(iterator)
        if loader is not None:
            entry.refused.update(self._copies.changed(iterator, loader))
            if self._copies.growing and entry is self.sources.primary:
                self.session.facts.remark(KEPT.format(self._copies.growing))
        if entry.fetches < 3 or entry.fetches % 64 == 63:
            entry.live["pinned"] = is_pinned(self.torch, batch)
            entry.live["on_device"] = is_on_device(self.torch, batch)
        self._on_batch(entry.key, batch, count)
        return Fetched(batch, count, wait_s, tokens_of(self.torch, batch))

    def _samples_of(self, entry: Loader, iterator: LoaderIterator, batch: object) -> int:
        count = queue.pop(0) if (queue := self._queues.get(iterator)) else 0
        if count == 0:
            return leading_dimension(self.torch, batch)
        if count == 1 and entry.takes_single_items:
            if not shows_one(self.torch, batch):
                entry.refused.setdefault("batch_size", ONE_ITEM)
            if rows := ready_rows(self.torch, batch):
                return rows
        rows = count if entry.map_style else entry.asked.count(self.torch, batch, count)
        return max(1, rows // self.session.facts.times_dealt)
