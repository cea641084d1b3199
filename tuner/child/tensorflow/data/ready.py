"""What lies ready in a pipeline of tf.data: made, and not fetched yet, by the model that TensorFlow keeps of it."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from ..types import DatasetIterator, ModelNode, ModelProto
from .at_work import BATCHING, AtWork

# Each element above is one below. A filter, an interleave, a zip or a window isn't so: what lies below isn't counted.
_ONE_TO_ONE = (
    "Root", "Prefetch", "Map", "ParallelMapV2", "MapAndBatch", "Shuffle", "ShuffleAndRepeat", "ForeverRepeat",
    "FiniteRepeat", "MemoryCache", "FiniteTake", "FiniteSkip", "AssertCardinality", "Model", "Options",
)  # fmt: skip
_INTERLEAVING = "ParallelInterleave"
"""So begin the names of those that make elements ahead themselves: each of these is one above."""
_KEPT_FULL = ("Shuffle", "ShuffleAndRepeat")
"""These give nothing before they are full: their buffer is no stock that a loop could live on."""


@dataclass(frozen=True)
class Stock:
    """What lies ready at one moment, and what may at most: batches that are whole, and samples that are in none yet.

    ``fetched``: batches so far. The most is by the buffers as they are: TensorFlow widens those that it tunes itself.
    ``most_interleaved``: what an interleave may hold beside it, in batches or, where these are made of it, in samples.
    """

    fetched: int
    batches: int
    samples: int
    most_batches: float
    most_samples: float
    most_interleaved: tuple[float, float] = (0.0, 0.0)


def model_of(tf: ModuleType, iterator: DatasetIterator) -> ModelProto:
    """Of an eager iterator. Raises what TensorFlow raises where it keeps no model: a distributed one, no autotuning."""
    model: ModelProto = tf.data.experimental.get_model_proto(iterator)
    return model


def read(model: ModelProto) -> Stock:
    """What lies ready by it."""
    fetched, ready, most, interleaved, batched = 0, [0, 0], [0.0, 0.0], [0.0, 0.0], 0
    for node in _in_a_row(model):
        unit = min(batched, 1)
        fetched = fetched or int(node.num_elements)
        if node.name not in _KEPT_FULL:
            ready[unit] += int(node.buffered_elements)
            most[unit] += sum(_bound(node, "buffer_size"))
            interleaved[unit] += sum(_bound(node, "max_buffered_elements"))
        batched += node.name in BATCHING
    return Stock(fetched, ready[0], ready[1], most[0], most[1], (interleaved[0], interleaved[1]))


def _in_a_row(model: ModelProto) -> Iterator[ModelNode]:
    """The nodes from the last one down, as long as elements are batches, or the samples of one batcher; an interleave
    that makes them is the last one.
    """
    key, batchers = model.output, 0
    while True:
        node = model.nodes[key]
        batchers += node.name in BATCHING
        interleaves = node.name.startswith(_INTERLEAVING)
        if batchers > 1 or not (interleaves or node.name in (*_ONE_TO_ONE, *BATCHING)):
            return
        yield node
        if interleaves or len(node.inputs) != 1:
            return
        key = node.inputs[0]


def _bound(node: ModelNode, name: str) -> Iterator[float]:
    for parameter in node.parameters:
        if parameter.name == name:
            yield parameter.value


_UNKNOWN = -2
"""The cardinality of data whose end comes as a surprise; -1 is that of data without one."""
_REMEMBERED = 8
"""So many iterations say where one of data may end that are made anew for each epoch."""


class ReadyWatch:
    """Of the iterator that training fetches from. ``is_unseen``: whether TensorFlow doesn't tell what lies ready;
    ``was_seen``: whether it has told it.
    """

    def __init__(self, tf: ModuleType) -> None:
        self._tf = tf
        self._iterator: Callable[[], DatasetIterator | None] = lambda: None
        self._is_new, self._is_later, self._has_begun = True, False, False
        self.is_unseen = self.was_seen = False
        self._made = self._fetched = -1
        self._cardinality = -1
        self._stock: Stock | None = None
        self._model: ModelProto | None = None
        self._dataset: Callable[[], object] = lambda: None
        self._at_work = AtWork()
        # Of data whose end comes as a surprise: where earlier iterations were seen last, at most.
        self._seen_until: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._seen_lately: deque[int] = deque(maxlen=_REMEMBERED)
        """The same of the newest iterations, whatever their data."""

    def fetches_from(self, iterator: DatasetIterator) -> None:
        """Training is about to fetch from it, or has."""
        if iterator is self._iterator():
            return
        before = self._dataset()
        if before is not None:
            self._seen_until[before] = max(self._fetched, self._seen_until.get(before, 0))
        self._seen_lately.append(max(0, self._fetched))
        self._is_new, self._is_later, self._has_begun = True, self._has_begun, True
        self._made = self._fetched = self._cardinality = -1
        self._at_work.begins_anew()
        self._dataset = lambda: None
        dataset = getattr(iterator, "_dataset", None)
        try:
            self._iterator = weakref.ref(iterator)
            if dataset is not None:
                self._cardinality = int(dataset.cardinality())
                self._dataset = weakref.ref(dataset)
        except Exception:
            self.is_unseen = True  # an iterator of the script's own: it must not fail for our sake

    def samples(self, batch_size: int) -> float | None:
        """Samples that lie ready, in batches of that size; None where that can't be seen.

        None as well where nothing more is to come, since what is left of an epoch is no stock of a faster loop, and the
        first time for an iterator: one before it had a queue of its own. Of iterations after the first, None until as
        many batches were fetched as can lie ready: what fills a queue then is used up, unseen, at its end.
        """
        stock = self._look()
        if stock is None:
            return None
        made = stock.fetched + stock.batches + stock.samples // max(1, batch_size)
        stands, self._made, self._fetched = made == self._made, made, stock.fetched
        is_new, self._is_new = self._is_new, False
        ended = made >= self._cardinality if self._cardinality >= 0 else self._may_have_ended(made, stands)
        batches, samples = stock.most_interleaved
        most = self.capacity(batch_size) + math.ceil(batches + samples / max(1, batch_size))
        fills = self._is_later and stock.fetched < most
        return None if is_new or ended or fills else float(stock.batches * batch_size + stock.samples)

    def _may_have_ended(self, made: int, stands: bool) -> bool:
        """Whether nothing may be to come, of data whose length TensorFlow doesn't know."""
        if self._cardinality != _UNKNOWN:
            return False
        dataset = self._dataset()
        # Data that are made anew with each epoch, as by each call of ``fit``, are known by the epochs before.
        usual = self._seen_until.get(dataset, 0) if dataset is not None else 0
        usual = usual or max(self._seen_lately, default=0)
        # What goes on beyond where others were seen last has shown that these were broken off there.
        return stands or self._fetched <= usual <= made

    def capacity(self, batch_size: int) -> int:
        """Batches that can lie ready, as of the last look; 0 where that isn't known."""
        stock = self._stock
        if stock is None:
            return 0
        return math.ceil(stock.most_batches + stock.most_samples / max(1, batch_size))

    def at_work(self, batch_size: int, computing: float) -> float:
        """As ``Feed.at_work``, in batches of that size, as of the last look at what lies ready; 0 without one."""
        return self._at_work.samples(self._model, batch_size, computing) if self._model is not None else 0.0

    def _look(self) -> Stock | None:
        iterator = self._iterator()
        self._stock = self._model = None
        if iterator is not None and not self.is_unseen:
            try:
                self._model = model_of(self._tf, iterator)
                self._stock = read(self._model)
                self.was_seen = True
            except Exception:
                self.is_unseen = True  # nor would it be another time
        return self._stock
