"""tf.data as custom loops use it: which dataset trains, what it gives, how long it keeps the script waiting."""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..call_sites import frames, user_stack
from ..patches import patch
from ..records import ProbeSide, Unstepped
from ..session import Session
from ..sources import DataSource, TrainingSources
from . import FRAMEWORK
from .data.ready import ReadyWatch
from .data.watch import DatasetWatch
from .entries import TracedFunction
from .functions import FunctionWatch, not_converted
from .rows import Rows
from .types import Arguments, Dataset, DatasetIterator, Result, Structure

_LIBRARIES = ("tensorflow", "keras", "tf_keras")
Fetch = Callable[..., Structure]
"""Gives the next element of the iterator that is its first argument. Raises ``OutOfRangeError`` where the data end."""
ForLoop = Callable[..., None]
"""Autograph's loop over a value: the value, a further test, the body, and what autograph wants to know."""


@dataclass
class DatasetSource(DataSource):
    """A place where datasets are iterated.

    ``iterator``: a weak reference to the newest iterator, None once it is gone. ``exhausted``: whether the newest
    iteration has come to its end. ``made_by``: the methods that make the datasets. ``rows``: what their elements hold.
    """

    rows: Rows = field(kw_only=True)
    iterator: Callable[[], DatasetIterator | None] = lambda: None
    exhausted: bool = False
    made_by: str = ""

    def is_like(self, other: DatasetSource) -> bool:
        """Whether both are datasets of one place, made alike: a script that keeps them makes one with each epoch."""
        return self.stack == other.stack and self.made_by == other.made_by


class IterationWatch:
    """Patches the iteration of datasets, eager and traced.

    ``datasets`` makes a dataset again as the config says; None where nothing is to be changed. ``stands_aside``:
    whether iterations are to be left alone now. ``largest``: samples in the largest batch that a graph fetched.
    """

    def __init__(
        self, session: Session, tf: ModuleType, datasets: DatasetWatch | None, functions: FunctionWatch,
        stands_aside: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.session = session
        self.tf = tf
        self.datasets = datasets
        self.functions = functions
        self.stands_aside = stands_aside
        self.sources: TrainingSources[DatasetSource] = TrainingSources(
            session.clock, session.request.knowledge.training_loaders, self._counts,
            self._counted, lambda batches: session.recorder.emit(Unstepped(batches)),
        )  # fmt: skip
        self.sources.reader = session.feeds
        self.largest = 0
        self.pipeline = ReadyWatch(tf)
        self.iterated: Callable[[DatasetIterator], object] = lambda iterator: None
        """Told of each iteration that isn't a loop's of the script's own, but Keras' maybe."""
        self._source_of: weakref.WeakKeyDictionary[object, DatasetSource] = weakref.WeakKeyDictionary()
        self._dataset_of: weakref.WeakKeyDictionary[object, Dataset] = weakref.WeakKeyDictionary()
        self._fetching = False

    def _counts(self) -> bool:
        return self.session.may_be_of(FRAMEWORK) or self.session.feeds.is_there

    def install(self) -> None:
        """Patches datasets, their iterators, and what strategies make of both."""
        iterators = sys.modules["tensorflow.python.data.ops.iterator_ops"]
        distributed = sys.modules["tensorflow.python.distribute.input_lib"]
        strategies = sys.modules["tensorflow.python.distribute.distribute_lib"]
        patch(self.tf.data.Dataset, "__iter__", self._iter)
        patch(strategies.StrategyBase, "experimental_distribute_dataset", self._distribute)
        if self.session.measuring:
            patch(iterators.OwnedIterator, "_next_internal", self._fetch)
            patch(distributed.DistributedDataset, "__iter__", self._iter)
            patch(distributed.DistributedDatasetsFromFunction, "__iter__", self._iter)
            patch(distributed.DistributedIteratorBase, "get_next", self._fetch)
            loops = sys.modules["tensorflow.python.autograph.operators.control_flow"]
            patch(loops.for_loop_registry, "lookup", self._lookup)

    # beginning an iteration

    def _iter(self, original: Callable[[Dataset], DatasetIterator]) -> Callable[[Dataset], DatasetIterator]:
        def __iter__(dataset: Dataset) -> DatasetIterator:
            if self.stands_aside() or not self.tf.executing_eagerly() or _inside_tensorflow():
                begun = original(dataset)
                self.iterated(begun)
                return begun
            source = self._source(dataset)
            if self.session.measuring:
                self.sources.fetch_begins(source)
            began = time.perf_counter()
            iterator = original(self._adapted(source, dataset))
            self._iteration_began(source, iterator, dataset, time.perf_counter() - began)
            return iterator

        return not_converted(__iter__)

    def _iteration_began(
        self, source: DatasetSource, iterator: DatasetIterator, dataset: Dataset, wait_s: float
    ) -> None:
        self._source_of[iterator] = source
        self._dataset_of[iterator] = dataset
        source.iterator = weakref.ref(iterator)
        if self.session.measuring:
            self.sources.iteration_began(source, wait_s)

    def _distribute(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def experimental_distribute_dataset(
            strategy: object, dataset: Dataset, *args: object, **kwargs: object
        ) -> Result:
            if self.stands_aside() or _inside_tensorflow():
                return original(strategy, dataset, *args, **kwargs)
            source = self._source(dataset)
            distributed = original(strategy, self._adapted(source, dataset), *args, **kwargs)
            self._source_of[distributed] = source
            return distributed

        return not_converted(experimental_distribute_dataset)

    def passed(self, values: Arguments, keys: set[str]) -> Arguments:
        """Arguments of a function with the datasets among them adapted; the keys of their sources go to ``keys``."""
        if not any(isinstance(value, (self.tf.data.Dataset, self.tf.data.Iterator)) or self._knows(value)
                   for value in values):  # fmt: skip
            return values
        adapted = []
        for value in values:
            source = self._source_of.get(value) if self._knows(value) else None
            if source is None and isinstance(value, self.tf.data.Dataset):
                source = self._source(value)
            if source is not None:
                keys.add(source.key)
            adapted.append(self._adapted(source, value))
        return tuple(adapted)

    def _knows(self, value: object) -> bool:
        try:
            return value in self._source_of
        except TypeError:
            return False  # not hashable, or not to be referred to weakly

    def _source(self, dataset: Any) -> DatasetSource:
        """The source of what is iterated here, the same for the same place with each epoch; added where it is new."""
        met_before = self._source_of.get(dataset)
        if met_before is not None:
            return met_before
        stack = user_stack()
        alike = self.sources.at(stack)
        if any((x.exhausted or x.iterator() is None) and x.dataset() is not None for x in alike):
            gc.collect()  # the last epoch's may only wait for it
        for source in alike:
            if source.iterated and source.dataset() is None:
                break  # the last epoch's, made anew
        else:
            source = self.sources.add(DatasetSource(f"{stack}#{len(alike)}", stack, rows=Rows(self.tf)))
        source.iterated, source.exhausted = True, False
        if (datasets := self.datasets) is not None:
            source.made_by = datasets.made_by(dataset) if datasets.is_dataset(dataset) else type(dataset).__name__
        source.dataset = weakref.ref(dataset)
        self._source_of[dataset] = source
        return source

    def _adapted(self, source: DatasetSource | None, value: Any) -> Any:
        """A dataset as the config says, where its source trains; anything else, a distributed one too, as it is."""
        if self.datasets is None or source is None or not isinstance(value, self.tf.data.Dataset):
            return value
        adapted = self.datasets.adapt(value) if self._is_known_to_train(source) else value
        source.rows.told(self.datasets.batch_sizes(value), adapted.element_spec)
        return adapted

    def _is_known_to_train(self, source: DatasetSource) -> bool:
        """Whether it trained in the baseline, or is one more of such: a script may run for more epochs than that."""
        if source.key in self.sources.known:
            return True
        met = any(use.key == source.key for use in self.session.request.knowledge.loaders)
        return not met and any(other.key in self.sources.known and source.is_like(other) for other in self.sources)

    # fetching

    def _fetch(self, original: Fetch) -> Fetch:
        def fetch(iterator: DatasetIterator, *args: object, **kwargs: object) -> Structure:
            if self._fetching or self.stands_aside():
                return original(iterator, *args, **kwargs)
            if not self.tf.executing_eagerly():
                return self._traced(original, iterator, *args, **kwargs)
            source = self._source_of.get(iterator)
            if source is None or self.functions.current is not None:
                return original(iterator, *args, **kwargs)
            self.session.check_stop()
            self.sources.fetch_begins(source)
            if self.session.request.probe and source.key in self.sources.known:
                return self._probe(original, iterator, source)
            began = time.perf_counter()
            try:
                element = self._apart(original, iterator)
            except self.tf.errors.OutOfRangeError:
                source.exhausted = True
                raise
            wait_s = time.perf_counter() - began  # the size of a batch may have to be read from the device
            self.sources.fetched(source, self._samples(source, element), wait_s)
            return element

        return not_converted(fetch)

    def _apart(self, original: Fetch, iterator: DatasetIterator, *args: object, **kwargs: object) -> Structure:
        """The next element; what a distributed iterator fetches from others for it isn't the script's fetch."""
        self._fetching = True
        try:
            return original(iterator, *args, **kwargs)
        finally:
            self._fetching = False

    def _traced(self, original: Fetch, iterator: DatasetIterator, *args: object, **kwargs: object) -> Structure:
        """A fetch while a graph is built: each run of the graph counts its batch."""
        element = self._apart(original, iterator, *args, **kwargs)
        source = self._source_of.get(iterator)
        if source is not None and self.functions.current is not None:
            self.functions.current.sources.add(source.key)
        self._count_in_graph(element, iterator)
        return element

    def _count_in_graph(self, element: Structure, iterated: object, *, trained: bool = False) -> None:
        """Has the graph count an element of what it iterates over, ``trained`` on: the script's own, or an argument."""
        entry, source = self.functions.current, self._source_of.get(iterated) if self._knows(iterated) else None
        if source is None and entry is not None and len(entry.sources) == 1:
            source = self.sources[next(iter(entry.sources))]
        rows = source.rows if source is not None else Rows(self.tf)
        if source is None and self.datasets is not None and isinstance(iterated, self.tf.data.Dataset):
            rows.told(self.datasets.batch_sizes(iterated), iterated.element_spec)
        key = source.key if source is not None else None
        self.functions.samples_traced(element, rows.of(element), key, trained=trained)
        if entry is not None:
            entry.doubt = entry.doubt or rows.doubt

    def _lookup(self, original: Callable[[object], ForLoop]) -> Callable[[object], ForLoop]:
        """Patches which of autograph's loops iterates over a value: those over data count what they train on."""
        loops = sys.modules["tensorflow.python.autograph.operators.control_flow"]
        iterable = sys.modules["tensorflow.python.types.distribute"].Iterable

        def lookup(value: object) -> ForLoop:
            try:
                loop = original(value)
            except LookupError:
                if not isinstance(value, iterable) or isinstance(value, sys.modules[iterable.__module__].Iterator):
                    raise
                loop = loops._tf_distributed_iterable_for_stmt
            entry = self.functions.current
            if entry is None or self.stands_aside() or self.tf.executing_eagerly():
                return loop
            return self._counting(loop, entry)

        return lookup

    def _counting(self, loop: ForLoop, entry: TracedFunction) -> ForLoop:
        entry.fetches = True
        if not entry.sources:
            entry.captures = True

        def for_stmt(iterated: object, extra_test: object, body: Callable[[Structure], None], *args: object) -> None:
            def counted(element: Structure) -> None:
                before = self.functions.gradients_traced
                body(element)
                if self.functions.gradients_traced > before:
                    self._count_in_graph(element, iterated, trained=True)

            loop(iterated, extra_test, counted, *args)

        return for_stmt

    def _probe(self, original: Fetch, iterator: DatasetIterator, source: DatasetSource) -> Structure:
        """One side of the loop by itself: the first batch again and again, or batches that nobody trains on."""

        def first() -> tuple[Structure, int]:
            element = self._apart(original, iterator)
            return element, self._samples(source, element)

        dataset = self._dataset_of[iterator]

        def fetch() -> tuple[int, float]:
            nonlocal iterator
            while True:
                began = time.perf_counter()
                try:
                    element = self._apart(original, iterator)
                except self.tf.errors.OutOfRangeError:
                    iterator = iter(dataset)
                    continue
                wait_s = time.perf_counter() - began
                return self._samples(source, element), wait_s

        if self.session.request.probe is ProbeSide.LOADER:
            self.sources.drain(source, fetch, lambda: self.session.step(self.session.trained_by or FRAMEWORK))
        return self.sources.first_again(source, first)

    # which one trains

    def _counted(self, source: DatasetSource, samples: int) -> None:
        """A batch of the primary source counts: the watch on datasets needs to know of it."""
        if self.datasets is not None and samples:
            self.datasets.saw_batch(samples)
            iterator = source.iterator()
            if source.fetches == 2 and iterator is not None:
                self.datasets.fed_by(iterator)

    def saw_in_graph(self, largest: int) -> None:
        """A graph has fetched batches by itself, of at most so many samples."""
        if self.datasets is not None and largest:
            self.datasets.saw_batch(largest)
        self.largest = largest

    def meet_training(self) -> None:
        """Passes the datasets that train to the watch on datasets."""
        for source in self.training() if self.datasets is not None else ():
            dataset = source.dataset()
            if self.datasets is not None and isinstance(dataset, self.tf.data.Dataset):
                self.datasets.meet(dataset)

    def gradient_ran(self, *, in_graph: bool = False) -> None:
        """A gradient was taken, of what was fetched since the last one; ``in_graph``: its function fetches itself."""
        if in_graph:
            self.sources.graph_fed_itself()
        if self.sources.gradient_ran():
            self.meet_training()

    def training(self) -> list[DatasetSource]:
        """The sources that feed training, those among the arguments of a training function included."""
        passed = {key for entry in self.functions.training for key in entry.sources - entry.fetched.apart}
        chosen = [source for source in self.sources if source.key in passed or self.sources.is_training(source)]
        # Of datasets that are kept, one an epoch, each feeds a few of all steps, but those with each of its batches.
        turns = [source for source in self.sources if 0 < source.fetches <= 2 * source.training_gaps]
        return [source for source in self.sources
                if source in chosen or (source in turns and any(map(source.is_like, chosen)))]  # fmt: skip

    @property
    def is_unseen(self) -> bool:
        """Whether nothing shows what lies ready for training: a graph fetches, or TensorFlow doesn't tell."""
        primary = self.sources.primary
        gone = primary is not None and primary.iterator() is None and not self.pipeline.was_seen
        return self.pipeline.is_unseen or (gone if primary is not None else bool(self.training()))

    def ready_samples(self) -> float | None:
        """Samples that lie ready for the training loop; None where that can't be seen."""
        primary = self.sources.primary
        iterator = primary.iterator() if primary is not None else None
        if iterator is None:
            return None
        self.pipeline.fetches_from(iterator)
        return self.pipeline.samples(self.size)

    @property
    def size(self) -> int:
        """Samples in most batches that trained, in the largest where a graph fetched them; 0 where none were seen."""
        primary = self.sources.primary
        return (primary.usual_size if primary is not None else 0) or self.largest

    @property
    def size_is_a_batchs(self) -> bool:
        """Whether ``size`` is that of batches, and not of single samples, or of what isn't known."""
        primary = self.sources.primary
        return not self.why_uncounted and (primary is None or primary.rows.are_batches or not primary.usual_size)

    @property
    def why_uncounted(self) -> str:
        """Why the samples of what trains aren't known, as a clause; "" where they are."""
        primary = self.sources.primary
        if primary is not None:
            return primary.rows.doubt
        return next((entry.doubt for entry in self.functions.training if entry.doubt), "")

    def _samples(self, source: DatasetSource, element: Structure) -> int:
        return source.rows.number(element)


def _inside_tensorflow() -> bool:
    """Whether TensorFlow or Keras iterates for itself, to adapt a layer, say."""
    # By where the libraries lie: a folder of the user's may well be called keras.
    modules = [module for name in _LIBRARIES if (module := sys.modules.get(name)) is not None]
    folders = tuple(os.path.dirname(module.__file__) + os.sep for module in modules if module.__file__)
    data = os.sep + os.path.join("tensorflow", "python", "data") + os.sep
    caller = next((name for name, _ in frames() if not (name.startswith(folders) and data in name)), "")
    return caller.startswith(folders)
