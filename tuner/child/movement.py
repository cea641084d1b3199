"""How far a sample of some weights moves in a screen, in small steps: a loss may fall where nothing is learned."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from .records import WeightChange
from .session import Session

TENSORS = 32
"""So many tensors of a group of weights are watched, spread over all of them."""
ELEMENTS = 64
"""And of each of them so many elements, spread alike."""
CHANGES = 16
"""And of so many of these the record tells by how much they changed, in four digits."""
JUMP = 20.0
"""Weights that move so many times as far at once as they usually do were set anew: beside that way what training adds
to it can't be seen. Adam's first step is about five usual ones."""
LEAST_SURE = 1 / 3
"""Of all looks; where one call of two is of another model, half of them are sure."""
MOST_GROUPS = 8
Samples = Sequence[Sequence[float]]
"""The watched elements of each watched tensor."""
Shapes = Iterable[Iterable[int | None]]
"""Of all tensors of a group, in their order; may raise where one has none."""


def spread(count: int, most: int = TENSORS) -> list[int]:
    """At most so many places out of ``count``, evenly spread."""
    return list(range(count)) if count <= most else [place * count // most for place in range(most)]


def stride(count: int) -> int:
    """Every how-many-th of so many elements is watched."""
    return max(1, -(-count // ELEMENTS))


class Movement:
    """One group's. ``read`` gives its samples, none as long as there is nothing to read; then nothing counts.

    ``is_lost``: something else was looked at, too; nothing is told then.
    """

    def __init__(self, name: str, read: Callable[[], Samples], group: str = "") -> None:
        self._name = name
        self._group = group
        self._read = read
        self._first: Samples = ()
        self._before: Samples = ()
        self._moved: list[float] = []
        self._unsure: list[float] = []
        self._is_read = self.is_lost = False

    def look(self, *, is_sure: bool = True) -> None:
        """Adds how far each tensor has moved since the last look; waits for the device. Never raises.

        ``is_sure``: whether these are the weights of the last look, trained further. Others may be another model's.
        """
        try:
            before, self._before = self._before, self._read()
        except Exception:
            self._is_read = False
            return  # not made yet, or no plain tensors: sharded, quantized, sparse
        self._is_read = any(self._before)
        # TensorFlow gives no elements of a variable that the graph has yet to make.
        if self._is_read and [*map(len, before)] == [*map(len, self._before)]:
            self._first = self._first or before
            moved = self._moved if is_sure else self._unsure
            moved.append(sum(math.dist(old, new) for old, new in zip(before, self._before, strict=True)))

    @property
    def record(self) -> WeightChange:
        """What was seen; of no steps where the last look read nothing: how far the weights went isn't known then."""
        steps = len(self._moved) + len(self._unsure) if self._is_read and not self.is_lost else 0
        path, changes = (self._path(), self._changes()) if steps else (0.0, ())
        return WeightChange(self._name, steps, path, self._group, changes)

    def _changes(self) -> tuple[tuple[float, ...], ...]:
        """By how much some elements of each tensor changed from the first look that counts; none where one of them
        isn't finite, or other elements were read meanwhile, or they were set anew.
        """
        if [*map(len, self._first)] != [*map(len, self._before)] or self._has_jumped():
            return ()
        both = list(zip(self._first, self._before, strict=True))
        changes = [[new[place] - old[place] for place in spread(len(old), CHANGES)] for old, new in both]
        if not all(math.isfinite(change) for each in changes for change in each):
            return ()
        return tuple(tuple(float(f"{change:.4g}") for change in each) for each in changes)

    def _path(self) -> float:
        """How far they went; without the ways to another model's, which training has nothing to do with."""
        return sum(self._moved) + sum(each for each in self._unsure if each <= self._longest)

    def _has_jumped(self) -> bool:
        moved = [distance for distance in (*self._moved, *self._unsure) if distance > 0]
        is_far = max(self._unsure, default=0.0) > self._longest
        return is_far or (bool(moved) and max(moved) > JUMP * statistics.median(moved))

    @property
    def _longest(self) -> float:
        """What may be training of ways that nobody is sure of; any, where few others are known."""
        if len(self._moved) < LEAST_SURE * (len(self._moved) + len(self._unsure)):
            return math.inf
        return JUMP * statistics.median([distance for distance in self._moved if distance > 0] or [0.0])


class Movements:
    """Of all groups of a seeded trial, in the order in which they were met; of any other trial nothing is seen."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._groups: list[Movement] = []
        self.watching = session.request.seed is not None and session.measuring
        if self.watching:
            session.observers.append(self._send)

    @property
    def has_room(self) -> bool:
        """Whether another group is watched."""
        return self.watching and len(self._groups) < MOST_GROUPS

    def begin(self, name: str, shapes: Shapes, read: Callable[[], Samples]) -> Movement:
        """Another group, with the first look at it. ``name``: for people, what moves it."""
        self._groups.append(movement := Movement(name, read, _digest(shapes)))
        movement.look()
        return movement

    def look(self) -> None:
        """At all groups, after a call that may have moved any of them."""
        for movement in self._groups:
            movement.look()

    def _send(self) -> None:
        for movement in self._groups:
            self._session.recorder.emit(movement.record)


def _digest(shapes: Shapes) -> str:
    """What tells a group from others in whichever order they are met; names go by that in which things are made."""
    try:
        return hashlib.sha256(repr([tuple(shape) for shape in shapes]).encode()).hexdigest()[:12]
    except Exception:
        return ""  # the group is told by when it was met
