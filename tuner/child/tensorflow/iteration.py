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
from ..session import Session
from .functions import FunctionWatch, TracedFunction, not_converted

_LIBRARIES = ("tensorflow", "keras", "tf_keras")


@dataclass
class Feed:
    """What is known of the datasets that are iterated at one place of the user's code."""

    key: str
    stack: str
    dataset: Callable[[], Any] = lambda: None
    iterator: Callable[[], Any] = lambda: None
    fetches: int = 0
    samples: float = 0.0
    training_gaps: int = 0
    in_graph: bool = False
    adapted: bool = False
    iterated: bool = False
    exhausted: bool = False
    sizes: dict[int, int] = field(default_factory=dict)


class SourceWatch:
    """Patches the iteration of datasets, eager and traced. ``datasets`` replays one as the config says."""

    def __init__(
        self, session: Session, tf: ModuleType, datasets: Any, functions: FunctionWatch,
        stands_aside: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.session = session
        self.tf = tf
        self.datasets = datasets
        self.functions = functions
        self.stands_aside = stands_aside
        self.feeds: dict[str, Feed] = {}
        self.gap: dict[str, None] = {}
        self.gaps = 0
        self.primary: str | None = None
        self.changes_of_primary = 0
        self.largest = 0
        self.fed_in_graph = False
        self._of_object: weakref.WeakKeyDictionary[Any, Feed] = weakref.WeakKeyDictionary()
        self._source_of: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._held: tuple[str, float, float] = ("", 0.0, 0.0)
        self._fetching = False
        self._kept: dict[str, tuple[Any, int]] = {}
        known = session.knowledge.get("training_loaders")
        self.known: set[str] | None = set(known) if known else None

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

    def _iter(self, original: Any) -> Any:
        def __iter__(dataset: Any) -> Any:
            if self.stands_aside() or not self.tf.executing_eagerly() or _inside_tensorflow():
                return original(dataset)
            feed = self._met(dataset)
            self._fetch_begins(feed)
            began = time.perf_counter()
            iterator = original(self._adapted(feed, dataset))
            self._begun(feed, iterator, dataset, time.perf_counter() - began)
            return iterator

        return not_converted(__iter__)

    def _begun(self, feed: Feed, iterator: Any, dataset: Any, wait_s: float) -> None:
        self._of_object[iterator] = feed
        self._source_of[iterator] = dataset
        feed.iterator = weakref.ref(iterator)
        if self.session.measuring and feed.key == self.primary:
            self.session.clock.add_samples(0, wait_s)

    def _distribute(self, original: Any) -> Any:
        def experimental_distribute_dataset(strategy: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            if self.stands_aside() or _inside_tensorflow():
                return original(strategy, dataset, *args, **kwargs)
            feed = self._met(dataset)
            result = original(strategy, self._adapted(feed, dataset), *args, **kwargs)
            self._of_object[result] = feed
            return result

        return not_converted(experimental_distribute_dataset)

    def passed(self, values: tuple[Any, ...], feeds: set[str]) -> tuple[Any, ...]:
        """Arguments of a function: datasets among them are adapted, and what they feed is noted in ``feeds``."""
        if not any(isinstance(value, (self.tf.data.Dataset, self.tf.data.Iterator)) or self._knows(value)
                   for value in values):  # fmt: skip
            return values
        given = []
        for value in values:
            feed = self._of_object.get(value) if self._knows(value) else None
            if feed is None and isinstance(value, self.tf.data.Dataset):
                feed = self._met(value)
            if feed is not None:
                feeds.add(feed.key)
                feed.in_graph = True
            given.append(self._adapted(feed, value))
        return tuple(given)

    def _knows(self, value: Any) -> bool:
        try:
            return value in self._of_object
        except TypeError:
            return False  # not hashable, or not to be referred to weakly

    def _met(self, dataset: Any) -> Feed:
        """The entry of what is iterated here, the same for the same place with each epoch."""
        known = self._of_object.get(dataset)
        if known is not None:
            return known
        stack = user_stack()
        alike = [feed for feed in self.feeds.values() if feed.stack == stack]
        if any(feed.exhausted and feed.dataset() is not None for feed in alike):
            gc.collect()  # the last epoch's may only wait for it
        for feed in alike:
            if feed.iterated and feed.dataset() is None:
                break  # the last epoch's, made anew
        else:
            feed = Feed(f"{stack}#{len(alike)}", stack)
            self.feeds[feed.key] = feed
        feed.iterated, feed.exhausted = True, False
        feed.dataset = weakref.ref(dataset)
        self._of_object[dataset] = feed
        return feed

    def _adapted(self, feed: Feed | None, dataset: Any) -> Any:
        """The dataset as the config says, where it trains; a distributed one was made of such."""
        if self.datasets is None or feed is None or feed.key not in (self.known or ()):
            return dataset
        if not isinstance(dataset, self.tf.data.Dataset):
            return dataset
        adapted = self.datasets.adapt(dataset)
        feed.adapted |= adapted is not dataset
        return adapted

    # fetching

    def _fetch(self, original: Any) -> Any:
        def fetch(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            if self._fetching or self.stands_aside():
                return original(iterator, *args, **kwargs)
            if not self.tf.executing_eagerly():
                return self._traced(original, iterator, args, kwargs)
            feed = self._of_object.get(iterator)
            if feed is None or self.functions.current is not None:
                return original(iterator, *args, **kwargs)
            self.session.check_stop()
            self._fetch_begins(feed)
            if self.session.probe and feed.key in (self.known or ()):
                return self._probe(lambda it: self._apart(original, it), iterator, feed)
            began = time.perf_counter()
            try:
                element = self._apart(original, iterator)
            except self.tf.errors.OutOfRangeError:
                feed.exhausted = True
                raise
            self._count(feed, element, time.perf_counter() - began)
            return element

        return not_converted(fetch)

    def _apart(self, original: Any, iterator: Any, *args: Any, **kwargs: Any) -> Any:
        """A distributed iterator asks others, which aren't the script's."""
        self._fetching = True
        try:
            return original(iterator, *args, **kwargs)
        finally:
            self._fetching = False

    def _traced(self, original: Any, iterator: Any, args: Any, kwargs: Any) -> Any:
        element = self._apart(original, iterator, *args, **kwargs)
        feed = self._of_object.get(iterator)
        if feed is not None and self.functions.current is not None:
            feed.in_graph = True
            self.functions.current.sources.add(feed.key)
        self._count_in_graph(element)
        return element

    def _count_in_graph(self, element: Any) -> None:
        with_rows = [count for count in (self._rows(leaf) for leaf in self._leaves(element)) if count is not None]
        if with_rows:
            self.functions.samples_traced(with_rows[0])

    def _lookup(self, original: Any) -> Any:
        """Which of autograph's loops iterates over a value: those over data count what they train on."""
        loops = sys.modules["tensorflow.python.autograph.operators.control_flow"]
        iterable = sys.modules["tensorflow.python.types.distribute"].Iterable

        def lookup(value: Any) -> Any:
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

    def _counting(self, loop: Any, entry: TracedFunction) -> Any:
        entry.fetches = True
        if not entry.sources:
            entry.captures = True

        def for_stmt(iterated: Any, extra_test: Any, body: Any, *args: Any) -> None:
            def counted(element: Any) -> None:
                before = self.functions.gradients_traced
                body(element)
                if self.functions.gradients_traced > before:
                    self._count_in_graph(element)

            loop(iterated, extra_test, counted, *args)

        return for_stmt

    def _probe(self, fetch: Callable[[Any], Any], iterator: Any, feed: Feed) -> Any:
        """One side of the loop by itself: the first batch again and again, or batches that nobody trains on."""
        if self.session.probe == "compute":
            if feed.key not in self._kept:
                element = fetch(iterator)
                self._kept[feed.key] = element, self._leading(element)
            element, count = self._kept[feed.key]
            self.session.clock.add_samples(count, 0.0)
            self.gap[feed.key] = None
            feed.fetches += 1
            feed.sizes[count] = feed.sizes.get(count, 0) + 1
            return element
        source, self.primary = self._source_of[iterator], feed.key
        while True:
            began = time.perf_counter()
            try:
                element = fetch(iterator)
            except self.tf.errors.OutOfRangeError:
                iterator = iter(source)
                continue
            self._count(feed, element, time.perf_counter() - began)
            self.session.step("keras")

    # which one trains

    def _fetch_begins(self, feed: Feed) -> None:
        if not self.session.measuring or (self.primary is None and not self.fed_in_graph):
            return
        if feed.key == self.primary:
            self.session.clock.fetch_begins()
        elif self.gap_share(feed.key) < 0.5:
            self.session.clock.validation_begins(feed.key)

    def _count(self, feed: Feed, element: Any, wait_s: float) -> None:
        count = self._leading(element)
        feed.fetches += 1
        feed.samples += count
        feed.sizes[count] = feed.sizes.get(count, 0) + 1
        self.gap.pop(feed.key, None)
        self.gap[feed.key] = None  # the last one fetched comes last
        if not self.session.may_be_of("keras"):
            return
        if self.primary is None:
            # Statistics may be taken of all the data first: what is fetched last before a step trains.
            key, samples, waited = self._held
            same = key == feed.key and not samples
            self._held = feed.key, count, wait_s + (waited if same else 0.0)
        elif feed.key == self.primary:
            self.session.clock.add_samples(count, wait_s)
            self._tell(feed, count)

    def _tell(self, feed: Feed, count: int) -> None:
        """What the watch on datasets needs to know of the one that trains."""
        if self.datasets is not None and count:
            self.datasets.saw_batch(count)
            if feed.fetches == 2 and feed.iterator() is not None:
                self.datasets.fed_by(feed.iterator())

    def saw_in_graph(self, largest: int) -> None:
        """A graph has fetched batches by itself, of at most so many samples."""
        if self.datasets is not None and largest:
            self.datasets.saw_batch(largest)
        self.largest = largest

    def meet_training(self) -> None:
        """Introduces the datasets that train to the watch on datasets."""
        for key in self.training() if self.datasets is not None else ():
            dataset = self.feeds[key].dataset()
            if dataset is not None:
                self.datasets.meet(dataset)

    def gap_share(self, key: str) -> float:
        """In which share of the gaps between steps the dataset was fetched."""
        return self.feeds[key].training_gaps / self.gaps if self.gaps else 0.0

    def gradient_ran(self, *, in_graph: bool = False) -> None:
        """What was fetched since the last gradient fed it, if it is in most such gaps, unless a graph fed itself."""
        if in_graph:
            self.fed_in_graph = True
            self.gap.clear()
        if not self.gap:
            return
        self.gaps += 1
        for key in self.gap:
            self.feeds[key].training_gaps += 1
        newest = next(reversed(self.gap))
        self.gap.clear()
        if self.primary is None:
            self.primary = newest
            if self._held[0] == newest:
                self.session.clock.add_samples(self._held[1], self._held[2])
                self._tell(self.feeds[newest], int(self._held[1]))
            self.meet_training()
        elif self.feeds[newest].training_gaps > self.feeds[self.primary].training_gaps:
            # The first steps came from something else: a search for a learning rate, an earlier stage.
            self.primary = newest
            self.changes_of_primary += 1

    def training(self) -> list[str]:
        """Keys of the datasets that feed training, those that a training function was given included."""
        given = {key for entry in self.functions.training for key in entry.sources}
        return [
            key for key in self.feeds
            if key == self.primary or key in given or (self.gaps and self.gap_share(key) >= 0.5)
        ]  # fmt: skip

    @property
    def size(self) -> int:
        """Samples in most batches that trained, in the largest where a graph fetched them; 0 where none were seen."""
        sizes = self.feeds[self.primary].sizes if self.primary is not None else {}
        return max(sizes, key=lambda size: sizes[size]) if sizes else self.largest

    # elements

    def _leaves(self, element: Any) -> list[Any]:
        return list(self.tf.nest.flatten(element))

    def _leading(self, element: Any) -> int:
        counts = [self._rows(leaf) for leaf in self._leaves(element)]
        return next((int(count) for count in counts if count is not None), 0)

    def _rows(self, leaf: Any) -> Any:
        """The leading dimension, a number where it is known; None for what has none."""
        tf = self.tf
        if isinstance(leaf, tf.distribute.DistributedValues):
            rows = [self._rows(value) for value in leaf.values]
            return None if any(row is None for row in rows) else sum(rows[1:], rows[0])
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.nrows()
        if isinstance(leaf, tf.SparseTensor):
            return leaf.dense_shape[0]
        if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
            return None
        return leaf.shape[0] if leaf.shape[0] is not None else tf.shape(leaf, out_type=tf.int64)[0]


def _inside_tensorflow() -> bool:
    """Whether TensorFlow or Keras iterates for itself, to adapt a layer, say."""
    # By where the libraries lie: a folder of the user's may well be called keras.
    modules = [module for name in _LIBRARIES if (module := sys.modules.get(name)) is not None]
    folders = tuple(os.path.dirname(module.__file__) + os.sep for module in modules if module.__file__)
    data = os.sep + os.path.join("tensorflow", "python", "data") + os.sep
    caller = next((name for name, _ in frames() if not (name.startswith(folders) and data in name)), "")
    return caller.startswith(folders)
