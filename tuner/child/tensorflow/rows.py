"""How many samples an element of a dataset holds: by the batcher that made it, else by what its tensors agree on."""

from __future__ import annotations

import operator
from functools import reduce
from types import ModuleType
from typing import Any, NamedTuple

from .types import Structure, Tensor

MAY_BE_ONE = "the dataset isn't seen to batch, and an element of it may be one sample or a batch of them"
DISAGREE = "what batches the dataset isn't seen, and the tensors of an element don't agree on a number of rows"


_Lengths = tuple[int | None, ...] | None
"""Of all dimensions of a tensor, None for what isn't known yet; None where there are none to be known."""


class _Place(NamedTuple):
    """Where a whole batch holds its samples: a tensor of the element, a dimension, and how many rows a sample has."""

    leaf: int
    dimension: int
    per_sample: int = 1


class Rows:
    """What the elements of one source's datasets hold.

    ``sizes``: those of the batchers as they run; empty where nothing batches, None where that isn't known.
    ``doubt``: why samples aren't known, as a clause; "" where they are, and before the first element. Each element
    counts as one then.
    """

    def __init__(self, tf: ModuleType) -> None:
        self._tf = tf
        self.sizes: frozenset[int] | None = None
        self.doubt = ""
        self._place: _Place | None = None
        self._is_one = False
        self._specs: list[_Lengths] = []

    @property
    def are_batches(self) -> bool:
        """Whether an element holds rows that are samples; false, too, before the first one."""
        return self._place is not None or (bool(self.sizes) and not self._is_one)

    def told(self, sizes: frozenset[int] | None, specs: Structure = None) -> None:
        """A dataset of the source is about to be iterated, of batches of these sizes; ``specs``: of its elements."""
        if sizes != self.sizes:
            self.sizes, self.doubt, self._place, self._is_one = sizes, "", None, False
        flat = [] if specs is None else self._tf.nest.flatten(specs)
        self._specs = [tuple(spec.shape.as_list()) if _has_rank(spec) else None for spec in flat]

    def of(self, element: Structure) -> Tensor | int:
        """Samples in an element, eager or traced: a number where that is known without the device."""
        leaves = list(self._tf.nest.flatten(element))
        if self._is_one:
            return 1
        if self._place is None:
            shapes = [self._shape(leaf) for leaf in leaves]
            if self.sizes:
                self._place = _place_of(shapes, self.sizes, self._specs)
            else:
                self._decide(shapes)
            if self._is_one:
                return 1
        place = self._place
        if place is not None and place.leaf < len(leaves):
            count = self._length(leaves[place.leaf], place.dimension)
            return self._bounded(count // place.per_sample if place.per_sample > 1 else count)
        return self._unplaced(shapes if place is None else [])

    def number(self, element: Structure) -> int:
        """As ``of``, of an eager element: waits for the device where it must."""
        count = self.of(element)
        return count if isinstance(count, int) else int(count.numpy())

    def _decide(self, shapes: list[_Lengths]) -> None:
        """Without a batcher's size: the tensors of a batch have as many rows, and one sample may have a scalar."""
        known = [shape for shape in shapes if shape is not None]
        lengths = {shape[0] for shape in known if shape and shape[0] is not None}
        agree = all(known) and len(lengths) <= 1 and bool(known)
        if agree and self.sizes is None:
            self._place = _Place(next(i for i, shape in enumerate(shapes) if shape is not None), 0)
            return
        self._is_one = True
        if self.sizes is None:
            self.doubt = DISAGREE
        elif agree:
            self.doubt = MAY_BE_ONE

    def _unplaced(self, shapes: list[_Lengths]) -> int:
        """Samples where no dimension is a whole batch's: the last batch of few samples, or what one was made into."""
        largest = max(self.sizes or {1})
        first = next((shape[0] for shape in shapes if shape and shape[0] is not None), largest)
        return min(first, largest) if first > 0 else largest

    def _bounded(self, count: Tensor | int) -> Tensor | int:
        """No more than a batcher gives."""
        if not self.sizes:
            return count
        largest = max(self.sizes)
        return min(count, largest) if isinstance(count, int) else self._tf.minimum(count, largest)

    # tensors

    def _shape(self, leaf: Any) -> _Lengths:
        tf = self._tf
        if isinstance(leaf, tf.distribute.DistributedValues):
            parts = [self._shape(value) for value in leaf.values]
            if not all(parts):
                return parts[0]
            firsts = [part[0] for part in parts if part]
            whole = None if None in firsts else sum(first or 0 for first in firsts)
            return (whole, *(parts[0] or ())[1:])
        if not isinstance(leaf, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)) or leaf.shape.rank is None:
            return None
        return tuple(leaf.shape.as_list())

    def _length(self, leaf: Any, dimension: int) -> Any:
        """One of them: a number where it is known, else a tensor. Of what replicas have parts of, the whole's rows."""
        tf = self._tf
        if isinstance(leaf, tf.distribute.DistributedValues):
            parts = [self._length(value, dimension) for value in leaf.values]
            return parts[0] if dimension else reduce(operator.add, parts)
        if isinstance(leaf, tf.RaggedTensor) and not dimension:
            return leaf.nrows()
        if isinstance(leaf, tf.SparseTensor):
            return leaf.dense_shape[dimension]
        size = leaf.shape[dimension]
        return size if size is not None else tf.shape(leaf, out_type=tf.int64)[dimension]


def _has_rank(spec: Any) -> bool:
    return getattr(getattr(spec, "shape", None), "rank", None) is not None


def _place_of(shapes: list[_Lengths], sizes: frozenset[int], specs: list[_Lengths]) -> _Place | None:
    """Where a batch's size is found: in a first dimension, else in another one, else as several rows a sample.

    ``specs``: what is known of all elements. Where a first dimension varies between elements, one that doesn't is no
    batch's: data of 32 features may come in batches of 32, of which the first one holds less.
    """

    def varies(place: _Place) -> bool:
        spec = specs[place.leaf] if len(specs) == len(shapes) else None
        return bool(spec) and len(spec or ()) > place.dimension and (spec or ())[place.dimension] is None

    firsts = [(_Place(leaf, 0), shape[0]) for leaf, shape in enumerate(shapes) if shape]
    others = [
        (_Place(leaf, dimension), length)
        for leaf, shape in enumerate(shapes)
        for dimension, length in enumerate(shape or ())
        if dimension
    ]
    some_vary = any(varies(place) for place, _ in firsts)
    # What isn't known in a graph is a batch's length, unless its last batch is left out.
    exact = [place for place, length in firsts if length in sizes and varies(place)]
    exact += [place for place, length in firsts if length in sizes]
    exact += [place for place, length in firsts if length is None]
    exact += [place for place, length in others if length is None or (length in sizes and varies(place))]
    exact += [place for place, length in others if length in sizes and not some_vary]
    if exact:
        return exact[0]
    size = min(sizes) if len(sizes) == 1 else 0
    several = (_Place(x.leaf, 0, length // size) for x, length in firsts if size and length and not length % size)
    return next(several, None)
