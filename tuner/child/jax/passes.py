"""Gradients since the last step, and the samples that they were taken on: they count when the step ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..own_batches import OwnBatches, Spot
from ..session import Session
from . import FRAMEWORK
from .rows import Found, agreed
from .types import Aval, aval_of, shape_of

MOST_PASSES = 10_000
"""Of one step; of more than that the samples aren't known."""
MOST_AGAIN = 4
"""A gradient is held against so many before it, whether it is taken on the batch of one of them."""
EACH = " on each device"
"""Ends the names of places that hold what one of several devices is given."""
TOLD_SHARE = 0.9
"""Samples are counted where so many of the steps' are known."""


@dataclass(frozen=True)
class Pass:
    """One gradient.

    ``owner``: who has taken it. ``found``: the arrays of its batch. ``made``: what it gave, held loosely.
    ``times``: how often it is taken, in a loop of JAX's; 0 where nobody knows that; None outside of one. ``steps``: the
    steps of its call; 0 where nobody knows. ``is_sure``: whether it is taken on all of those arrays, as far as is seen;
    None where the next gradient shows it: on parts of them, if that is given the very same.
    ``is_part``: whether its function applies no update, where others do. ``parameters``: shapes of what it is taken of.
    """

    owner: object
    name: str
    found: list[Found]
    times: int | None
    made: Sequence[Callable[[], Any]]
    steps: int
    is_sure: bool | None
    is_part: bool
    parameters: frozenset[Aval]

    def is_on_batch_of(self, other: Pass) -> bool:
        """Whether it is taken on the very arrays that another one of its owner was: at other parameters (SAM)."""
        return self.is_sure is not False and other.is_sure is not False and self.is_given_that_of(other)

    def is_given_that_of(self, other: Pass) -> bool:
        """Whether its arrays are the very same as those of another one."""
        is_alike = len(other.found) == len(self.found) > 0
        return is_alike and all(one.is_same(two) for one, two in zip(other.found, self.found, strict=True))

    def batches(self, shape: Sequence[int], dimension: int) -> int:
        """How many batches a call trains on, where this dimension of an array holds the rows of one.

        Those of all gradients, where the array holds one of each. Else they are taken on what the function slices off
        it, or again on all of it: parts of a batch, or an adversary's walk. Then there is one a step.
        """
        times = self.times or 1
        return times if math.prod(shape[:dimension]) % times == 0 else self.steps or 1


@dataclass(frozen=True)
class _Waiting:
    """One since the last step. ``sums``: those before it whose results its call was given."""

    taken: Pass
    sums: list[_Waiting]

    def may_sum(self, other: _Waiting) -> bool:
        """Whether what it was given of the other one is a sum, and not what that trained, or made of the samples."""
        own, others = self.taken, other.taken
        return others.owner is own.owner or (others.is_part and others.parameters == own.parameters)

    def is_in(self, held: Collection[int]) -> bool:
        """Whether its result is among these, by their ids."""
        return any(id(leaf) in held for made in self.taken.made if (leaf := made()) is not None)


def _with_sums(passes: Sequence[_Waiting], is_used: Callable[[_Waiting], bool]) -> list[_Waiting]:
    """Those that are used, and those that these sum: of the same function, or of one that applies no update."""
    used = {id(each) for each in passes if is_used(each)}
    for each in reversed(passes):
        if id(each) in used:
            used.update(id(summed) for summed in each.sums if each.may_sum(summed))
    return [each for each in passes if id(each) in used]


class Passes:
    """Of one trial. ``told``, ``untold``: gradients whose samples are known, and others.

    ``differing``: lengths of a batch's arrays that don't agree. ``unsure``: gradients of which nobody knows whether
    they are taken on all of the data or on parts. ``own_batches``: samples where the script states its batch size.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.own_batches = OwnBatches(session)
        self.told = self.untold = self.unsure = 0
        self.differing: list[int] = []
        self._usual_rows: dict[int, int] = {}
        self._dimensions: dict[tuple[str, int], int] | None = None
        self._waiting: list[_Waiting] = []
        self._applied: list[_Waiting] = []
        self._undecided: list[tuple[Pass, int, bool]] = []
        """With their samples, and whether no block was under way yet."""

    def add(self, taken: Pass, given: Callable[[], Collection[Any]]) -> None:
        """A gradient was taken, by a call that was ``given`` these."""
        if len(self._waiting) + len(self._applied) < MOST_PASSES:
            held = {id(leaf) for leaf in given()} if self._waiting else set[int]()
            self._waiting.append(_Waiting(taken, [each for each in self._waiting if each.is_in(held)]))

    def keep_used(self, given: Callable[[], Collection[Any]]) -> None:
        """An update is about to be applied to what is ``given``: a gradient that isn't in it was taken for its value.

        It may be in it by way of others, which summed them. Where none of them is in it, something else has.
        """
        if len(self._waiting) > 1:
            held = {id(leaf) for leaf in given()}
            self._waiting = _with_sums(self._waiting, lambda each: each.is_in(held)) or self._waiting
        self._applied += self._waiting
        self._waiting = []

    def owner_of_update(self, counting: Any, trained: Callable[[], Sequence[Any]]) -> Any:
        """Whose gradients count where an update is applied to what is ``trained``: who is ``counting``, unless that has
        taken none of such arrays since the last step, and another one has, as where a derivative is looked at before.
        """
        passes = [each.taken for each in (*self._applied, *self._waiting)]
        if all(each.owner is counting for each in passes):
            return counting
        kinds = {aval_of(leaf) for leaf in trained() if shape_of(leaf)}
        owners = [each.owner for each in passes if not kinds.isdisjoint(each.parameters)]
        return owners[0] if owners and counting not in owners else counting

    def forget_applied(self) -> None:
        """The update was another one than those that are counted."""
        self._applied = []

    def forget(self) -> None:
        """Another function is counted from here on."""
        self._waiting, self._applied = [], []

    def step_ends(self, owner: object) -> None:
        """A step is about to be counted: it was taken on those of this owner."""
        self.session.feeds.stepped(FRAMEWORK)
        passes = [*self._applied, *self._waiting]
        self.forget()
        own = [each.taken for each in _with_sums(passes, lambda each: each.taken.owner is owner)]
        for number, each in enumerate(own):
            if not any(map(each.is_on_batch_of, own[max(0, number - MOST_AGAIN) : number])):
                self._count(each)
        self.own_batches.step_ends()

    def _count(self, each: Pass) -> None:
        if self.session.request.probe is not None and self.session.feeds.feeding is not None:
            return  # the loader counts: the same batch again is no sign of one
        self._decide(each)
        rows = agreed(self._by_samples(each)) if each.times is None and each.is_sure is not False else None
        if self.own_batches.is_wanted:
            self._tell_places(each)
        if rows is None:
            self.unsure += each.is_sure is False
            self.untold += 1
            self.differing = sorted({found.rows for found in each.found})
        elif each.is_sure:
            self._tell(rows)
        else:
            self._undecided.append((each, rows, not self.session.clock.total_steps))

    def _decide(self, newest: Pass) -> None:
        """Those before it are of a batch each, or of parts of data that stay."""
        undecided, self._undecided = self._undecided, []
        for each, rows, is_early in undecided:
            if newest.is_given_that_of(each):
                self.unsure += 1
                self.untold += 1
            else:
                self._tell(rows, is_early=is_early)

    def _tell(self, rows: int, *, is_early: bool = False) -> None:
        """So many samples were trained on; in the first step, which no block holds, where that ``is_early``."""
        self.told += 1
        self._usual_rows[rows] = self._usual_rows.get(rows, 0) + 1
        clock = self.session.clock
        if self.own_batches.is_wanted:
            return
        if not is_early:
            clock.add_samples(rows, 0.0)
        else:
            clock.told_samples += rows
            clock.total_samples += rows * clock.counts_samples

    def _by_samples(self, each: Pass) -> list[Found]:
        """The arrays of its batch, each with the dimension in front that holds the samples.

        That is the first one, but where what feeds the steps gives batches of another size, and a later one is as long:
        in batches whose first dimension is time. It is the same in each batch, as the first one of that size shows it.
        """
        feeding = self.session.feeds.feeding
        size = feeding.written_size() if feeding is not None and self._dimensions is None else None
        if size:
            places = {(each.name, found.number): found.place_of(size) for found in each.found}
            if agreed(each.found) == size:
                self._dimensions = {}
            elif places and None not in places.values():
                self._dimensions = {spot: place for spot, place in places.items() if place is not None}
        known = self._dimensions or {}
        given = ((found, known.get((each.name, found.number), 0)) for found in each.found)
        return [found.seen_from(place) if 0 < place < len(found.shape) else found for found, place in given]

    def _tell_places(self, each: Pass) -> None:
        """How long each dimension is of what a gradient was given, in all, and on each device where there are several.

        What the script states may be either: what all devices have together, or each of them.
        """
        sizes, times = dict[Spot, int](), dict[Spot, int]()
        stated = self.session.stated_batch_size()
        for found in each.found if each.times != 0 else ():
            for devices, name in ((found.devices, each.name), (1, each.name + EACH))[: 1 + (found.devices > 1)]:
                for dimension, size in enumerate(found.shape):
                    if each.is_sure is not False or dimension > 0 or size * devices <= stated:
                        spot = name, found.number, dimension
                        sizes[spot] = size * devices
                        times[spot] = each.batches(found.shape, dimension) * (found.devices // devices)
        self.own_batches.passed(sizes, times)

    @property
    def counts_samples(self) -> bool:
        """Whether the samples that trained could be counted."""
        if self.own_batches.is_wanted:
            return self.own_batches.counts
        return self.told > 0 and self.told >= TOLD_SHARE * (self.told + self.untold)

    @property
    def rows(self) -> int:
        """Samples of most gradients; 0 where they aren't known."""
        return max(self._usual_rows, key=lambda rows: self._usual_rows[rows]) if self._usual_rows else 0
