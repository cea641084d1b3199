"""What Keras trains on: counted in TensorFlow's graph, or in Python where batches pass through it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from ..jax.lead import Lead
from ..patches import patch
from ..records import ProbeSide
from ..session import Session
from ..sources import Reader
from ..tensorflow.counters import plain_variable
from ..tensorflow.graphs import threads_of
from ..tensorflow.types import Strategy, Structure, Tensor, Variable
from .shapes import CompiledShapes


class GraphCounters:
    """Variables that the training function adds to, so that what ran counts and not what was asked for.

    They live on the host: a step that is compiled for the device never touches them. ``shapes``: of the batches of
    steps that XLA compiles.
    """

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self.session = session
        self.tf = tf
        self.timing = False
        self._samples: Variable | None = None
        self._largest: Variable | None = None
        self._wait_s: Variable | None = None
        self._read = (0, 0.0)
        self.shapes = CompiledShapes(tf)

    def install(self) -> None:
        """Times the batches of iterators while ``timing`` is set."""
        from tensorflow.python.data.ops import iterator_ops

        patch(iterator_ops.OwnedIterator, "get_next", self._get_next)

    def prepare(self) -> None:
        """Makes the variables, outside of any graph; not before training begins, since they start the runtime."""
        if self._samples is None:
            with self.tf.device("/CPU:0"):
                self._samples = plain_variable(self.tf, 0, "int64")
                self._largest = plain_variable(self.tf, 0, "int64")
                self._wait_s = plain_variable(self.tf, 0.0, "float64")

    @property
    def variables(self) -> list[Variable]:
        """Those that are added to."""
        return [each for each in (self._samples, self._largest, self._wait_s) if each is not None]

    def count(self, data: Structure, strategy: Strategy, *, compiled: int = 0) -> None:
        """Adds the leading dimension of a step's batch; called while the training function is traced or runs.

        ``compiled``: the number of the function where XLA compiles its step, for each shape of a batch; else 0.
        """
        tf = self.tf
        if self._samples is None or self._largest is None:
            return
        if compiled:
            self.shapes.note([value for value in tf.nest.flatten(data) if isinstance(value, tf.Tensor)], compiled)
        for value in tf.nest.flatten(data):
            parts = strategy.experimental_local_results(value)
            tensors = [part for part in parts if isinstance(part, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor))]
            if tensors and tensors[0].shape.rank != 0:
                sizes = [_leading(tf, tensor) for tensor in tensors]
                with tf.device("/CPU:0"):
                    size = tf.add_n(sizes)
                    self._samples.assign_add(size)
                    self._largest.assign(tf.maximum(self._largest, size))
                return

    def _get_next(self, original: Callable[[object], Structure]) -> Callable[[object], Structure]:
        tf = self.tf

        def get_next(iterator: object) -> Structure:
            if not self.timing or self._wait_s is None or self._is_deterministic():
                return original(iterator)
            with tf.device("/CPU:0"):
                began = tf.timestamp()
            with tf.control_dependencies([began]):
                element = original(iterator)
            tensors = [t for t in tf.nest.flatten(element, expand_composites=True) if isinstance(t, tf.Tensor)]
            with tf.control_dependencies(tensors), tf.device("/CPU:0"):
                ended = tf.timestamp()
                self._wait_s.assign_add(ended - began)
            if tf.executing_eagerly() or threads_of(tf, "inter") > 1:
                return element
            # Where one thread runs all operations, those of the step would come before the clock is read.
            with tf.control_dependencies([ended]):
                passed: Structure = tf.nest.map_structure(_same(tf), element, expand_composites=True)
            return passed

        unconverted: Callable[[object], Structure] = tf.autograph.experimental.do_not_convert(get_next)
        return unconverted

    def _is_deterministic(self) -> bool:
        """Whether the script wants nothing but deterministic operations, of which a reading of the clock is none."""
        wanted = bool(sys.modules["tensorflow.python.framework.config"].is_op_determinism_enabled())
        if wanted:
            self.session.facts.hide_wait("the script has enabled TensorFlow's op determinism")
        return wanted

    @property
    def samples(self) -> int:
        """Samples that were trained on so far. Reading waits for the steps that are under way."""
        return 0 if self._samples is None else int(self._samples.numpy())

    @property
    def largest(self) -> int:
        """Rows of the largest batch that was trained on; 0 where none was seen."""
        return 0 if self._largest is None else int(self._largest.numpy())

    def settle(self) -> None:
        """Gives the clock what was counted since the last time. Reading waits for the steps that are under way."""
        if self._wait_s is None:
            return
        now = (self.samples, float(self._wait_s.numpy()))
        self.session.clock.settle(now[0] - self._read[0], max(0.0, now[1] - self._read[1]))
        self._read = now


def _same(tf: ModuleType) -> Callable[[object], object]:
    return lambda value: tf.identity(value) if isinstance(value, tf.Tensor) else value


def _leading(tf: ModuleType, value: object) -> Tensor:
    """The leading dimension of a tensor, ragged and sparse ones included, as a scalar of the graph."""
    if isinstance(value, tf.RaggedTensor):
        rows: Tensor = value.nrows(out_type=tf.int64)
        return rows
    shape = value.dense_shape if isinstance(value, tf.SparseTensor) else tf.shape(value, out_type=tf.int64)
    leading: Tensor = tf.cast(shape[0], tf.int64)
    return leading


class BatchCounters:
    """Counts and times batches that pass through Python, those of the jax and torch backends, while ``counting``.

    ``fetching``: whether the next one is waited for. ``lead``: tells how long what computes had nothing to do
    meanwhile, where it may be behind Keras.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lead = Reader()
        self.counting = False
        self.fetching = False
        self.largest = 0

    def runs_ahead(self, newest: Callable[[], Iterable[Any]]) -> None:
        """JAX gives Keras its results before they are there, on each of its devices; ``newest`` are those of a step."""
        self.session.clock.asynchronous = True
        if not self.lead.is_there:
            self.lead = Lead(newest, sys.modules["jax"].block_until_ready)

    def install(self, iterators: type) -> None:
        """Patches the backend's iterator over an epoch."""
        patch(iterators, "_get_iterator", self._get_iterator)

    def _get_iterator(
        self, original: Callable[[object], Iterable[Structure]]
    ) -> Callable[[object], Iterable[Structure]]:
        def _get_iterator(iterator: object) -> Iterable[Structure]:
            batches = original(iterator)
            return _Begun(self._counted, batches) if self.counting else batches

        return _get_iterator

    def _counted(self, batches: Iterator[Structure], start_s: float) -> Iterator[Structure]:
        clock, instruments = self.session.clock, self.session.clock.instruments
        began, self.fetching = time.perf_counter() - start_s, True
        self.lead.fetch_begins()
        try:
            for batch in _first_of(batches) if self.session.request.probe is ProbeSide.COMPUTE else batches:
                if not instruments.off:
                    fetched = time.perf_counter()
                    size, self.fetching = leading_dimension(batch), False
                    self.largest = max(self.largest, size)
                    clock.add_samples(size, self.lead.idle_s(fetched - began))
                yield batch
                if not instruments.off:
                    clock.fetch_begins()
                    self.lead.fetch_begins()
                    began, self.fetching = time.perf_counter(), True
        finally:
            self.fetching = False


class _Begun:
    """Batches that are begun where they are asked for, and not with the first of them: PyTorch's loaders draw then.

    What that takes, such as workers that start, is waited for with the first batch.
    """

    def __init__(
        self, count: Callable[[Iterator[Structure], float], Iterator[Structure]], batches: Iterable[Structure]
    ) -> None:
        self._count = count
        self._batches = batches

    def __iter__(self) -> Iterator[Structure]:
        began = time.perf_counter()
        batches = iter(self._batches)
        return self._count(batches, time.perf_counter() - began)


def _first_of(batches: Iterable[Structure]) -> Iterator[Structure]:
    """The first batch again and again, for the probe."""
    for batch in batches:
        while True:
            yield batch


def leading_dimension(batch: Structure) -> int:
    """Rows of the first array in a nested batch; 0 where there is none."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return next((size for size in map(leading_dimension, batch) if size), 0)
    shape: tuple[int, ...] = tuple(getattr(batch, "shape", ()))
    return int(shape[0]) if shape else 0
