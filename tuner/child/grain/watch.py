"""Grain's loaders and datasets: which one trains, what it gives, how long it keeps the script waiting, its knobs.

A ``DataLoader`` is turned where it is made, a dataset where it is iterated: by then all of its nodes have drawn their
seeds, which depend on where they stand. Of an iteration the outermost iterator is watched alone, by a class of its own:
Grain's inner ones are asked for each sample.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ..call_sites import frames, user_stack
from ..data_state import ITERATIONS_READ, StateWatch
from ..feeds import FED
from ..patches import patch
from ..records import ProbeSide, Unstepped, Value
from ..session import Session
from ..sources import TrainingSources
from . import KNOBS, PUT_AHEAD, ahead, pipeline, workers
from .places import GrainSource, as_written, refusals
from .rows import rows_of

_LOADERS = "grain._src.python.data_loader"
_NODES = "grain._src.python.dataset.dataset"
KEEPS_STATE = "the script keeps where its iterator stands, and Grain goes on from there with as many workers only"
DROPS = "some of its samples are dropped as they are read: another number of workers would change their order"
CHANGES = "{} changes while the data are read: workers have copies of their own, or read it ahead"
MOST_AT_PLACE = 64
"""Pipelines of one place that are told apart."""


class GrainWatch:
    """Of one trial."""

    def __init__(self, session: Session, grain: ModuleType) -> None:
        self.session = session
        self.folder = os.path.dirname(str(grain.__file__)) + os.sep
        self.sources: TrainingSources[GrainSource] = TrainingSources(
            session.clock, session.request.knowledge.training_loaders, lambda: session.feeds.is_there,
            on_unstepped=lambda batches: session.recorder.emit(Unstepped(batches)),
        )  # fmt: skip
        self.sources.reader = session.feeds
        turns = session.trained_by in ("", *FED)  # of others' configs these are knobs of other loaders
        self._wanted = {k: session.request.config[k] for k in KNOBS if turns and session.knobs.wants(k)}
        self._ahead = ahead.AheadWatch(session, self.folder, int(self._wanted.pop(PUT_AHEAD, 0)))
        self._of_object: weakref.WeakKeyDictionary[Any, GrainSource] = weakref.WeakKeyDictionary()
        self._iterated: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._kinds: dict[type, type] = {}
        self._states: weakref.WeakKeyDictionary[Any, StateWatch] = weakref.WeakKeyDictionary()
        self._started: weakref.WeakSet[Any] = weakref.WeakSet()

    def install(self) -> None:
        """Patches what is made and iterated; nothing where nothing is measured or turned."""
        if not (self.session.measuring or self._wanted or self._ahead.wanted):
            return
        loaders, nodes = sys.modules[_LOADERS], sys.modules[_NODES]
        if not (hasattr(loaders.DataLoader, "_create_dataset") and hasattr(nodes, "_OutputIterDataset")):
            raise RuntimeError("before 0.2.16 it makes its loaders otherwise, and they aren't watched")
        patch(loaders.DataLoader, "__init__", self._init)
        patch(loaders.DataLoader, "__iter__", self._iter_loader)
        patch(nodes._OutputIterDataset, "__iter__", self._iter_dataset)

    # what is made

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def __init__(loader: Any, *args: Any, **given: Any) -> None:
            original(loader, *args, **given)
            made = self._shape(loader._dataset) if self.session.here else None
            if made is None:
                return
            source = self._source(loader, made, anew=True)
            source.made = (source.made or 0) + 1
            values = self._values(source)
            if values:
                named = dict(list(signature.bind(loader, *args, **given).arguments.items())[1:])
                options = pipeline.read_options(made, values)
                turned = {
                    "worker_count": values.get("num_workers", made.workers),
                    "operations": loader._operations,  # what the script gave may be read once only
                    "worker_buffer_size": values.get("prefetch_factor", made.buffer or 1), "read_options": options,
                }  # fmt: skip
                original(loader, **{**named, **turned})
                pipeline.keep_batches(made, loader._dataset)
                source.changed.update(values)

        return __init__

    def _shape(self, dataset: Any) -> pipeline.Pipeline | None:
        """What it consists of; None where this version of Grain's, or a node of the script's, is made otherwise."""
        try:
            return pipeline.look_at(dataset)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            self.session.note(f"a Grain pipeline could not be looked into: {type(error).__name__}: {error}")
            return None

    def _source(self, made: Any, shape: pipeline.Pipeline, *, anew: bool) -> GrainSource:
        """The source of a loader, or of a dataset: the same for the same place with each epoch; added where it is new.

        ``anew``: one that is made where an alike one was, and has been iterated, stands for it.
        """
        known = self._of_object.get(made)
        if known is not None:
            return known
        stack, written = user_stack(), as_written(shape)
        data = made if anew or shape.reader is None else shape.reader._parents[0]  # which is the same each time
        alike = self.sources.at(stack)
        if not anew and any(x.iterated and x.dataset() not in (None, data) for x in alike):
            gc.collect()  # the last epoch's may only wait for it
        for source in alike:
            if source.iterated and source.written == written and (anew or source.dataset() in (None, data)):
                break
        else:
            source = GrainSource(f"{stack}#{len(alike)}", stack, pipeline=shape, written=written)
            source = self.sources.add(source) if len(alike) < MOST_AT_PLACE else alike[-1]
        self._refuse(source, shape, by_loader=anew)
        source.dataset, source.pipeline = weakref.ref(data), shape
        self._of_object[made] = source
        return source

    def _refuse(self, source: GrainSource, shape: pipeline.Pipeline, *, by_loader: bool) -> None:
        """What of it can't be turned: each of one place is looked at, since each may be made of something else."""
        refused, is_first = refusals(shape), not source.iterated
        if "num_workers" not in refused and by_loader and not shape.is_whole:
            kind = next(type(n).__name__ for n in shape.above[::-1] if not type(n).__name__.startswith("_DataLoader"))
            refused["num_workers"] = f"its operations need to see all samples ({kind}): workers have a share each"
        looks = (self.session.measuring and is_first) or "num_workers" in self._wanted
        if looks and "num_workers" not in {**refused, **source.refused}:
            parts = pipeline.parts_of(shape)
            why = workers.why_drawn(parts)
            if not why and is_first and not shape.workers:
                why = workers.why_none(parts, shape.chain[0])
            if why:
                refused["num_workers"] = why
        if "num_workers" in refused and not shape.workers:
            refused.setdefault("prefetch_factor", refused["num_workers"])
        source.refused = {**refused, **source.refused}

    def _values(self, source: GrainSource) -> Mapping[str, Value]:
        """What the config gives it."""
        if self.sources.known and source.key not in self.sources.known:
            return {}
        values = {knob: value for knob, value in self._wanted.items() if knob not in source.refused}
        count = values.get("num_workers", source.written["num_workers"])
        if not count:
            values.pop("prefetch_factor", None)
        source.adds = bool(count) and not source.written["num_workers"]
        return values

    # what is iterated

    def _iter_loader(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __iter__(loader: Any) -> Any:
            source = self._of_object.get(loader)
            if source is None or not self.session.here:
                return original(loader)
            count = self._count_ahead(source, self._values(source))
            return self._begun(source, loader, lambda: self._ahead.of_loader(source, loader, count, original))

        return __iter__

    def _iter_dataset(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def __iter__(output: Any) -> Any:
            if not self.session.here or self._is_inner():
                return original(output)
            dataset = output._parents[0]
            try:
                return self._iteration(output, dataset, original)
            finally:
                dataset.has_child = False  # as it was: with a child its next iteration would pass us by

        return __iter__

    def _iteration(self, output: Any, dataset: Any, original: Callable[[Any], Any]) -> Any:
        is_first, shape = dataset not in self._of_object, self._shape(dataset)
        if shape is None:
            return original(output)
        source = self._source(dataset, shape, anew=False)
        values = self._values(source)
        count = self._count_ahead(source, values)
        output = type(output)(pipeline.rebuilt(shape, values)) if values else output
        source.changed.update(values)
        # Grain has its own once for each dataset: it wraps the iterator's class each time, one in the other.
        begin = original if is_first else lambda node: node._parents[0].__iter__()
        made = pipeline.rebuilt(shape, values) if count else None
        return self._begun(
            source, dataset, lambda: self._ahead.of_dataset(source, made, count, (type(output), begin), output)
        )

    def _count_ahead(self, source: GrainSource, values: Mapping[str, Value]) -> int:
        """How many batches a thread is to make ahead."""
        is_other = bool(self.sources.known) and source.key not in self.sources.known
        return 0 if is_other else self._ahead.count(source, adds=int(values.get("num_workers", 0)) > 0)

    def _is_inner(self) -> bool:
        """Whether Grain iterates for itself."""
        nodes = str(sys.modules[_NODES].__file__)
        caller = next((name for name, _ in frames() if name != nodes), "")
        return caller.startswith(self.folder)

    def _begun(self, source: GrainSource, made: Any, begin: Callable[[], Any]) -> Any:
        measuring = self.session.measuring
        if measuring and source is self.sources.primary:
            self.sources.fetch_begins(source)
        began = time.perf_counter()
        with workers.starting_anew(source.adds):
            iterator = begin()
        kind = type(iterator)
        try:
            if kind not in self._kinds:
                self._kinds[kind] = self._watched(kind)
            iterator.__class__ = self._kinds[kind]
        except TypeError:
            return iterator  # a generator of the script's: nothing tells what it gives
        self._of_object[iterator], self._iterated[iterator] = source, made
        source.newest, source.iterated = weakref.ref(iterator), True
        if measuring:
            self.sources.iteration_began(source, time.perf_counter() - began)
            is_read_here = not source.written["num_workers"] and PUT_AHEAD not in source.changed
            if len(self._states) < ITERATIONS_READ and is_read_here:
                self._states[iterator] = StateWatch()
        return iterator

    def _watched(self, kind: Any) -> type:
        """The class of an iterator that tells of what it gives; for the script it is the one that it was."""

        def __next__(iterator: Any) -> Any:
            return self._next(kind, iterator)

        def get_state(iterator: Any) -> Any:
            self._keeps_state(iterator)
            return kind.get_state(iterator)

        def set_state(iterator: Any, state: Any) -> None:
            self._keeps_state(iterator)
            source = self._of_object.get(iterator)
            if source is not None and "num_workers" in source.changed:
                workers.check_state(state, int(self._wanted["num_workers"]))
            kind.set_state(iterator, state)

        meta: Any = type(kind)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        methods = {"__next__": __next__, "get_state": get_state, "set_state": set_state}
        made: type = meta(kind.__name__, (kind,), {**names, **methods})
        return made

    def _keeps_state(self, iterator: Any) -> None:
        """The script asks where its iterator stands, or has it go on from there."""
        source = self._of_object.get(iterator)
        if source is not None and "num_workers" not in source.changed:
            source.refused.setdefault("num_workers", KEEPS_STATE)
        elif self.session.applied is not None:
            self.session.applied.say(f"{KEEPS_STATE}: what it keeps here it can go on from with this profile only")

    def _next(self, kind: Any, iterator: Any) -> Any:
        source = self._of_object.get(iterator)
        if source is None or not self.session.here:
            return kind.__next__(iterator)
        begins = iterator not in self._started
        self._started.add(iterator)
        with workers.starting_anew(source.adds and begins):
            if not self.session.measuring:
                element = kind.__next__(iterator)
                self._look(source, iterator)
                return element
            self.session.check_stop()
            self.sources.fetch_begins(source)
            if self.session.request.probe and source.key in self.sources.known:
                return self._probe(kind, iterator, source)
            began = time.perf_counter()
            element = kind.__next__(iterator)
            wait_s = time.perf_counter() - began
        self.sources.fetched(source, rows_of(element), wait_s)
        self._ahead.look(source, element)
        self._look(source, iterator)
        return element

    def _look(self, source: GrainSource, iterator: Any) -> None:
        """What it works with, and whether its data are what workers could read."""
        state = self._states.get(iterator)
        if state is not None and source.pipeline is not None:
            shape = source.pipeline
            moved = state.read(lambda: workers.copied(pipeline.parts_of(shape)))
            if moved:
                source.refused.setdefault("num_workers", CHANGES.format(moved))
                source.refused.setdefault(PUT_AHEAD, ahead.CHANGES.format(moved))
        number = source.fetches if self.session.measuring else 0
        if (number > 3 and number % 64) or (not self.session.measuring and source.live):
            return
        source.live = seen(iterator)
        if not source.written["num_workers"] and self.session.measuring and "num_workers" not in source.changed:
            self._look_for_drops(source, iterator)

    def _look_for_drops(self, source: GrainSource, iterator: Any) -> None:
        """Grain counts the samples that a reader drops, and begins anew with each thousand of them."""
        for each in workers.nodes(iterator):
            checker = each.__dict__.get("_threshold_checker") if type(each).__name__.startswith("Prefetch") else None
            if checker is not None and not isinstance(checker._raise_threshold, _Asked):
                checker._raise_threshold = _Asked(checker._raise_threshold)
            if checker is not None and (checker._skipped or checker._raise_threshold.shown):
                source.refused.setdefault("num_workers", DROPS)

    def _probe(self, kind: Any, iterator: Any, source: GrainSource) -> Any:
        """One side of the loop by itself."""
        if self.session.request.probe is ProbeSide.COMPUTE:

            def fetch() -> tuple[Any, int]:
                element = kind.__next__(iterator)
                return element, rows_of(element)

            return self.sources.first_again(source, fetch)
        made, newest = self._iterated[iterator], iterator

        def fetch_on() -> tuple[int, float]:
            nonlocal newest
            while True:
                began = time.perf_counter()
                try:
                    element = kind.__next__(newest)
                except StopIteration:
                    newest = iter(made)
                    continue
                return rows_of(element), time.perf_counter() - began

        return self.sources.drain(source, fetch_on, lambda: self.session.step(self.session.trained_by))


class _Asked(float):
    """The share of samples that may be dropped, which Grain compares those of each thousand with.

    ``shown``: whether any was, at the times when it asked.
    """

    shown = False

    def __le__(self, share: float) -> bool:
        self.shown |= share > 0
        return super().__le__(share)


def seen(iterator: Any) -> dict[str, Any]:
    """Knob → what an iterator works with."""
    found: dict[str, Any] = {"num_workers": workers.living(iterator), PUT_AHEAD: ahead.depth(iterator)}
    processes = workers.processes(iterator)
    if processes:
        found["prefetch_factor"] = processes[0]._buffer_size
        reader = pipeline.reader_of(processes[0]._iter_parent)
        if reader is not None:
            found["read_threads"] = reader._read_options.num_threads
            found["read_buffer"] = reader._read_options.prefetch_buffer_size
    for each in workers.nodes(iterator):
        if "_target_num_threads" in vars(each):
            found["read_threads"], found["read_buffer"] = each._target_num_threads, each._target_prefetch_buffer_size
    return found


def ready(iterator: Any, shape: pipeline.Pipeline, size: int) -> float | None:
    """Samples that lie ready for the loop; None where that can't be seen, and once all data were asked for."""
    try:
        found = workers.nodes(iterator)
        return None if any(map(_has_asked_for_all, found)) else float(sum(_ready(each, shape, size) for each in found))
    except (AttributeError, NotImplementedError, OSError, RuntimeError, ValueError):
        return None  # another version's bookkeeping, a system without qsize, queues that were closed


def _has_asked_for_all(each: Any) -> bool:
    """Whether one of its iterators has nothing more to make: from there on what lies ready grows less by itself."""
    kind = type(each).__name__
    if kind == "PrefetchDatasetIterator":
        return bool(each._next_buffered_index >= each._dataset_length)
    thread = each._prefetch_thread if kind == "ThreadPrefetchDatasetIterator" else None
    return thread is not None and not thread.is_alive()


def _ready(each: Any, shape: pipeline.Pipeline, size: int) -> int:
    """Samples in what one of its iterators has ahead."""
    kind = type(each).__name__
    if kind == "PrefetchDatasetIterator":
        done = sum(int(future.done()) for future in list(each._buffer))
        return done if shape.reads_singles else done * size
    if kind in ("ThreadPrefetchDatasetIterator", "ProcessPrefetchDatasetIterator"):
        made = int(each._buffer.qsize())
        return made if shape.gives_singles and not ahead.depth(each) else made * size
    return 0
