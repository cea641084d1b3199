"""How long the arrays are that a step is given: eager tensors, NumPy's, and what a strategy has split over replicas."""

from __future__ import annotations

from types import ModuleType

from ..own_batches import Spot
from .types import Structure

_MOST_ARRAYS, _MOST_DIMENSIONS, _MOST_SPOTS = 8, 4, 64


def sizes_of(tf: ModuleType, call: str, given: Structure) -> dict[Spot, int]:
    """The length of each dimension of the first arrays in ``given``; what isn't known while a graph is built is absent.

    Of a value that each replica has a part of, only the first dimension: the rows of all parts.
    """
    arrays = [shape for shape in (_shape(tf, leaf) for leaf in tf.nest.flatten(given)) if shape]
    return {
        (call, array, dimension): size
        for array, shape in enumerate(arrays[:_MOST_ARRAYS])
        for dimension, size in enumerate(shape[:_MOST_DIMENSIONS])
        if size is not None
    }


def add(sizes: dict[Spot, int], more: dict[Spot, int]) -> None:
    """Takes more of them in; those of a later call replace those of an earlier one."""
    if len(sizes) < _MOST_SPOTS:
        sizes |= more


def _shape(tf: ModuleType, leaf: object) -> list[int | None]:
    """Empty for what is no array."""
    if isinstance(leaf, tf.distribute.DistributedValues):
        parts = [_shape(tf, value) for value in leaf.values]
        rows = [part[0] for part in parts if part and part[0] is not None]
        return [sum(rows)] if len(rows) == len(parts) else []
    shape = getattr(leaf, "shape", None)
    try:
        return [None if size is None else int(size) for size in shape or ()]
    except (TypeError, ValueError):  # a tensor of unknown rank, or no array at all
        return []
