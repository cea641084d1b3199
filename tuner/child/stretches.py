"""Whether what a function is asked about between two steps comes again: data that stay are validated on.

A *stretch* is what lies between two steps. A function that is asked about other values in each acts in what is trained
on: it is a rollout's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

_MOST_CALLS, _MOST_ARRAYS, _MOST_VALUES = 32, 8, 1024
_SURE = 3
"""So many stretches on the same values are those of data that stay."""


@dataclass
class Stretches:
    """What one function was asked about. ``steps``: when it was last called.

    ``newest``, ``before``: what it was given in this stretch and in the last one, by hashes. ``repeats``: stretches
    that were given the same; ``varies``: whether one was given something else.
    """

    steps: int = -1
    newest: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    repeats: int = 0
    varies: bool = False

    def called(self, steps: int) -> tuple[int, bool]:
        """It is called after so many steps in all: how many since its last call, and whether a stretch begins."""
        since, is_new, self.steps = steps - self.steps, steps != self.steps, steps
        return since, is_new

    def compare(self, hashed: Callable[[], int | None], *, is_new: bool) -> None:
        """Holds a call against the one at its place in the last stretch. ``hashed``: of what it is given."""
        if self.varies or self.repeats >= _SURE:
            return
        if is_new and self.newest:
            self.repeats += self.newest == self.before
            self.before, self.newest = self.newest, []
        place = len(self.newest)
        values = hashed() if place < _MOST_CALLS else None
        if values is None:
            return
        self.newest.append(values)
        self.varies = place < len(self.before) and self.before[place] != values


def hash_of(leaves: Iterable[Any], every: Callable[[Any, int], Any]) -> int | None:
    """Of some values of each array among the leaves; None where there is none, or they can't be read.

    ``every``: each so-and-so-many-th value of one, as an array of NumPy's.
    """
    try:
        arrays = [leaf for leaf in leaves if _is_array(leaf)]
        return hash(tuple(_values(leaf, every) for leaf in arrays[:_MOST_ARRAYS])) if arrays else None
    except Exception:
        return None  # ragged, sparse, of replicas


def _values(leaf: Any, every: Callable[[Any, int], Any]) -> tuple[Any, ...]:
    shape = tuple(map(int, leaf.shape))
    number = math.prod(shape) // _MOST_VALUES | 1  # odd: else it might go down a column
    return shape, every(leaf, number).tobytes()


def _is_array(leaf: Any) -> bool:
    """Whether it holds data: scalars count or schedule, and variables are what is trained."""
    return len(getattr(leaf, "shape", ())) > 0 and not hasattr(leaf, "assign")
