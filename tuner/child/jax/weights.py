"""How far a screen moves a sample of the weights in loops of JAX's: what gradients are taken of, and goes round.

Weights are new arrays with each step. What a call is given of the results of another one shows which results they are:
from then on they are looked at when that call has ended. Where something else updates them, as an eager loop does, they
are looked at when the next gradient is about to be taken. An optimizer's moments are given and updated alike, but no
gradient is taken of them. A function's first call shows what it takes gradients of: the first look is before its second
one. Nothing here holds an array beyond a look: it may be given away in the next call.
"""

from __future__ import annotations

import itertools
import math
import sys
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ..movement import MOST_GROUPS, Movement, Movements, Samples, spread, stride
from ..session import Session
from .deferred import is_there, real
from .functions import JittedFunction
from .sites import EagerSite, Owner
from .traces import Trace
from .types import Arguments, Call, Keywords, Leaves, leaves_at, shape_of

Place = tuple[int, int]
"""How many results a call has, and the number of one of them: what it gives may go by a flag."""
Made = dict[int, tuple[Callable[[], Any], Place]]
"""By the identity of an array: the array, held loosely, and its place among a call's results."""
MOST_CALLS = MOST_GROUPS
"""Of a function's last calls the results are known: it may train so many models by turns."""


class WeightWatch:
    """Of one seeded trial; of any other it sees nothing. ``is_reading``: what JAX does meanwhile is ours."""

    def __init__(self, session: Session, jax: Any) -> None:
        self._movements = Movements(session)
        self._leaves: Leaves = jax.tree_util.tree_leaves
        self._sample: Call = jax.jit(_samples_of(jax.numpy))
        self._read: Call = jax.device_get
        self._groups: list[_Group] = []
        self._of: weakref.WeakKeyDictionary[Owner, dict[Hashable, list[_Watched]]] = weakref.WeakKeyDictionary()
        self._made: weakref.WeakKeyDictionary[Owner, deque[Made]] = weakref.WeakKeyDictionary()
        self.is_reading = False

    def call_begins(self, function: JittedFunction, trace: Trace, args: Arguments, kwargs: Keywords) -> None:
        """Of a compiled function that takes gradients, as a former call has shown."""
        if self._movements.watching:
            given = self._gradients(trace, args, kwargs)
            if given:
                self._given(function, tuple(trace.weights), given)

    def eager_gradient(self, site: EagerSite, differentiated: Sequence[Any]) -> None:
        """About to be taken."""
        if self._movements.watching:
            self._given(site, len(differentiated), [differentiated])

    def call_ended(self, function: JittedFunction, args: Arguments, kwargs: Keywords, result: Any) -> None:
        """Of a compiled function that takes gradients, or applies updates."""
        if not self._movements.watching:
            return
        kind = tuple(function.last.weights)
        if kind and kind not in self._of.get(function, {}):
            self._watch(function, kind, self._gradients(function.last, args, kwargs), may_begin=False)
        leaves = self._leaves(result)
        for group in self._groups:
            numbers = group.results.get(function, {}).get(len(leaves))
            if numbers is not None:
                self._look(group, [leaves[number] for number in numbers])
        arrays = ((leaf, number) for number, leaf in enumerate(leaves) if hasattr(leaf, "is_deleted"))
        made = self._made.setdefault(function, deque(maxlen=MOST_CALLS))
        made.append({id(leaf): (weakref.ref(leaf), (len(leaves), number)) for leaf, number in arrays})

    def catch_up(self) -> None:
        """Looks at what is computed by now, and wasn't when its call ended."""
        for group in self._groups:
            leaves = [each() for each in group.newest]
            if not (group.is_seen or any(leaf is None for leaf in leaves)):
                self._look(group, leaves)

    def _gradients(self, trace: Trace, args: Arguments, kwargs: Keywords) -> list[list[Any]]:
        """What a call is given of each gradient; nothing where it isn't of this trace."""
        given = [list(leaves_at(self._leaves, args, kwargs, places)) for places in trace.weights]
        return given if [*map(len, given)] == [*map(len, trace.weights)] else []

    # groups

    def _given(self, owner: Owner, kind: Hashable, given: Sequence[Sequence[Any]]) -> None:
        """A call is given these, of each of its gradients. ``kind`` tells the owner's calls of different traces."""
        known = self._of.get(owner, {}).get(kind)
        if known is None:
            self._watch(owner, kind, given, may_begin=True)
        for watched in known or ():
            leaves = [given[watched.gradient][number] for number in watched.numbers]
            is_newest = watched.group.has_newest(leaves)
            if not (watched.group.is_seen and is_newest):
                self._notes_results(watched.group, leaves)
                self._look(watched.group, leaves, is_sure=is_newest)

    def _watch(self, owner: Owner, kind: Hashable, given: Sequence[Sequence[Any]], *, may_begin: bool) -> None:
        """Of each gradient the group whose arrays it is given, which another function may train, too, or a new one.

        Without a new one, where that may not begin here, only if all of them are known.
        """
        found = []
        for gradient, (leaves, chosen) in enumerate(self._weights_of(given)):
            watched = [given[gradient][number] for number in chosen]
            group = next((each for each in self._groups if each.has_newest(watched)), None)
            if group is None and leaves:
                if not may_begin:
                    return
                group = self._begin(owner.name, leaves, watched)
            if group is not None:
                self._notes_results(group, watched)
                found.append(_Watched(group, gradient, chosen))
        if found:
            self._of.setdefault(owner, {})[kind] = found

    def _begin(self, name: str, leaves: Sequence[Any], watched: Sequence[Any]) -> _Group | None:
        if not self._movements.has_room:
            return None
        self._groups.append(group := _Group(self._read_sample))
        group.puts(watched)
        group.movement = self._movements.begin(name, map(shape_of, leaves), group.read)
        group.is_seen = True
        return group

    def _weights_of(self, given: Sequence[Sequence[Any]]) -> list[tuple[list[Any], list[int]]]:
        """Of each gradient the weights, and the numbers of those that are watched.

        They are those that go round, where any does: an adversary takes gradients of samples, too. Where none is known
        to, there are none as long as some are arrays of NumPy's: those will be JAX's once they are updated.
        """
        numbers = [[number for number, leaf in enumerate(leaves) if _is_weight(leaf)] for leaves in given]
        going_round = [
            [number for number in each if self._giver_of(leaves[number]) is not None]
            for leaves, each in zip(given, numbers, strict=True)
        ]  # fmt: skip
        found = []
        are_jaxs = [all(hasattr(leaf, "is_deleted") or not shape_of(leaf) for leaf in leaves) for leaves in given]
        begun = [each if is_whole else [] for each, is_whole in zip(numbers, are_jaxs, strict=True)]
        for leaves, each in zip(given, going_round if any(going_round) else begun, strict=True):
            found.append(([leaves[number] for number in each], [each[place] for place in spread(len(each))]))
        return found

    def _notes_results(self, group: _Group, leaves: Sequence[Any]) -> None:
        """Which function has given them, and where among its results: where that changes, others were looked at."""
        found = [self._giver_of(leaf) for leaf in leaves]
        givers = {(each[0], each[1][0]) for each in found if each is not None}
        if len(givers) == 1 and None not in found:
            owner, count = givers.pop()
            numbers = [each[1][1] for each in found if each is not None]
            if group.results.setdefault(owner, {}).setdefault(count, numbers) != numbers and group.movement is not None:
                group.movement.is_lost = True

    def _giver_of(self, leaf: Any) -> tuple[Owner, Place] | None:
        for owner, calls in self._made.items():
            for made in reversed(calls):
                known, place = made.get(id(leaf), (None, (0, 0)))
                if known is not None and known() is leaf:
                    return owner, place
        return None

    # looks

    def _look(self, group: _Group, leaves: Sequence[Any], *, is_sure: bool = True) -> None:
        """``is_sure``: whether they are the group's, by the call that gave them."""
        group.puts(leaves)
        if group.movement is not None and all(map(is_there, leaves)):
            group.movement.look(is_sure=is_sure)
            group.is_seen = True

    def _read_sample(self, leaves: Sequence[Any]) -> Samples:
        self.is_reading = True
        try:
            values = sys.modules["numpy"].asarray(self._read(self._sample(list(map(real, leaves)))), "float64").tolist()
        finally:
            self.is_reading = False
        sizes = map(_size_of, leaves)
        ends = [0, *itertools.accumulate(-(-size // stride(size)) for size in sizes)]
        return [values[start:end] for start, end in itertools.pairwise(ends)]


class _Group:
    """Weights of which one gradient is taken. ``newest``: the watched ones, as they are now.

    ``is_seen``: these were looked at. ``results``: by functions that give them, and how many results these have, the
    numbers that they have there.
    """

    def __init__(self, read: Callable[[Sequence[Any]], Samples]) -> None:
        self.movement: Movement | None = None
        self.newest: list[Callable[[], Any]] = []
        self.is_seen = False
        self.results: weakref.WeakKeyDictionary[Owner, dict[int, Sequence[int]]] = weakref.WeakKeyDictionary()
        self._read_sample = read

    def puts(self, leaves: Sequence[Any]) -> None:
        """They are these from here on."""
        self.newest, self.is_seen = [weakref.ref(leaf) for leaf in leaves], False

    def has_newest(self, leaves: Sequence[Any]) -> bool:
        """Whether they are these."""
        are_alike = len(leaves) == len(self.newest) > 0
        return are_alike and all(known() is leaf for known, leaf in zip(self.newest, leaves, strict=True))

    def read(self) -> Samples:
        """Of as they are now."""
        return self._read_sample([each() for each in self.newest])


class _Watched:
    """A group among what the ``gradient`` of that number is taken of: its ``numbers`` there."""

    def __init__(self, group: _Group, gradient: int, numbers: Sequence[int]) -> None:
        self.group, self.gradient, self.numbers = group, gradient, numbers


def _is_weight(leaf: Any) -> bool:
    """Whether it is an array of JAX's, of floating numbers, with a dimension at least."""
    return hasattr(leaf, "is_deleted") and _size_of(leaf) > 0 and "float" in str(leaf.dtype)


def _size_of(leaf: Any) -> int:
    return math.prod(shape_of(leaf)) if shape_of(leaf) else 0


def _samples_of(numpy: Any) -> Call:
    """What JAX compiles: elements of each array, spread over it, one after another; no array is laid out anew."""

    def samples(leaves: Sequence[Any]) -> Any:
        host = sys.modules["numpy"]
        kind = "float64" if any(str(leaf.dtype) == "float64" for leaf in leaves) else "float32"
        places = [host.unravel_index(host.arange(0, leaf.size, stride(leaf.size)), leaf.shape) for leaf in leaves]
        return numpy.concatenate([leaf[place].astype(kind) for leaf, place in zip(leaves, places, strict=True)])

    return samples
