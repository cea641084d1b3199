"""How many samples a call trains on, by its arguments: what goes in that no earlier call gave.

State goes round: parameters, statistics and what an optimizer remembers come out of a call and go into the next one. A
batch is new with each call. So the arrays are told apart by where they come from, in the first calls; a call's samples
are the first dimension that most arrays of a batch share. Data that are the same with each call are a batch, too, where
nothing else is. Which arguments hold the batch is looked at again when they no longer fit.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .types import Arguments, Aval, Keywords, Leaves, Place, aval_of, shape_of

LOOKS = 6
"""Calls after the first, in which it is found out which arguments hold the batch."""
ELEMENTS = 61
"""About so many tell whether an array holds what it held: a prime number, or they would all be from one column."""
AROUND = " around"
"""Ends the names of what a function closes over, among those of its arguments."""
_KEYS = "key<"
"""Begins the types of keys for random numbers."""


@dataclass(frozen=True)
class Found:
    """An array of a batch: its number among all of the call's leaves, its shape, and itself, held loosely.

    ``is_around``: whether the function closes over it. ``content``: a little of what it holds, where that can change.
    ``devices``: so many of that shape, one on each (``jax.pmap``).
    """

    number: int
    shape: tuple[int, ...]
    made: Callable[[], object] | None = field(default=None, compare=False)
    is_around: bool = False
    content: bytes = field(default=b"", compare=False)
    devices: int = 1

    @property
    def rows(self) -> int:
        """The first dimension, on all devices."""
        return self.shape[0] * self.devices

    def place_of(self, size: int) -> int | None:
        """Which dimension is so long, on all devices; None where none is."""
        return next((place for place, length in enumerate(self.shape) if length * self.devices == size), None)

    def seen_from(self, place: int) -> Found:
        """The same, with that dimension as its first one."""
        return replace(self, shape=(self.shape[place], *self.shape[:place], *self.shape[place + 1 :]))

    def of_members(self, members: int) -> Found:
        """The same, where several models are trained at once, and it holds rows for each of them."""
        has_own = members > 0 and len(self.shape) > 1 and self.shape[0] == members
        return replace(self, shape=(members * self.shape[1], *self.shape[2:])) if has_own else self

    def is_same(self, other: Found) -> bool:
        """Whether it is the very same array, which is still there and holds the same."""
        array = self.made() if self.made is not None else None
        return array is not None and other.made is not None and other.made() is array and self.content == other.content


@dataclass
class _Tally:
    """Of one place: in how many looks it held an array, how often that was new, and how often the very same again."""

    number: int
    looks: int = 0
    new: int = 0
    same: int = 0


class Outputs:
    """What the newest calls gave, as long as it is needed to tell state from batches. Keeps no array alive."""

    def __init__(self, leaves: Leaves) -> None:
        self._leaves = leaves
        self._of: dict[int, tuple[object, dict[int, tuple[Callable[[], object], int]]]] = {}

    def put(self, owner: object, result: Any) -> None:
        """The results of the newest call of one function."""
        leaves = enumerate(self._leaves(result))
        made = {id(leaf): (made, number) for number, leaf in leaves if (made := _reference(leaf))}
        self._of[id(owner)] = owner, made

    def hold(self, leaf: object) -> bool:
        """Whether an earlier call gave it."""
        return self.giver_of(leaf) is not None

    def giver_of(self, leaf: object) -> object:
        """The function that gave it; None where none did."""
        return self.place_of(leaf)[0]

    def place_of(self, leaf: object) -> tuple[object, int]:
        """The function that gave it, and its number among the leaves of that result; None where none did."""
        for owner, given in self._of.values():
            made, number = given.get(id(leaf), (None, 0))
            if made is not None and made() is leaf:
                return owner, number
        return None, 0


class Rows:
    """Of one function. ``changes``: how often other arguments came to hold the batch.

    ``stay``: whether what was found last are the very same arrays with each call: a step may train on parts of them;
    None before a second call shows it.
    ``devices``: the length of the dimension in front that arrays have for devices (``jax.pmap``); 0 where they have
    none. ``whole``: numbers of arguments without it, which each device is given as they are.
    """

    def __init__(self, leaves: Leaves, outputs: Outputs) -> None:
        self._leaves = leaves
        self._outputs = outputs
        self._looks = 0
        self._tallies: dict[Place, _Tally] = {}
        self._before: dict[Place, Callable[[], object]] = {}
        self._places: dict[int | str, list[tuple[int, int]]] | None = None
        self.changes = 0
        self.stay: bool | None = None
        self.devices = 0
        self.whole: frozenset[int] = frozenset()

    @property
    def is_learning(self) -> bool:
        """Whether it isn't known yet which arguments hold the batch."""
        return self._places is None

    def first(self, args: Arguments, kwargs: Keywords, result: Any, parameters: Collection[Aval]) -> list[Found]:
        """The batch of the first call, by its result: what comes out in the same shape is state."""
        given = Counter(self._shape(leaf) for leaf in self._leaves(result))
        trained = {shape for shape, _ in parameters}  # NumPy's own may be of another type than what comes out
        found = []
        for place, number, leaf in self._all(args, kwargs):
            shape = self._shape(leaf)
            self._keep(place, leaf)
            if given[shape] > 0:
                given[shape] -= 1
            elif trained.isdisjoint((shape, shape_of(leaf))) and not self._is_state(leaf, parameters):
                found.append(self._found(place, number, leaf))
        return found

    def of(self, args: Arguments, kwargs: Keywords, parameters: Collection[Aval]) -> list[Found]:
        """The batch of a later call. ``parameters``: shapes of what is differentiated."""
        if self._places is not None:
            try:
                return list(self._known(args, kwargs))
            except (IndexError, KeyError):
                self._begin_anew()
        return self._look(args, kwargs, parameters)

    def _known(self, args: Arguments, kwargs: Keywords) -> Iterator[Found]:
        assert self._places is not None
        for argument, wanted in self._places.items():
            leaves = self._leaves(args[argument] if isinstance(argument, int) else kwargs[argument])
            for place, number in wanted:
                if not self._shape(leaves[place]):
                    raise IndexError(place)
                yield self._found((argument, place), number, leaves[place])

    def _begin_anew(self) -> None:
        self.changes += 1
        self._looks, self._tallies, self._before, self._places = 0, {}, {}, None

    def _all(self, args: Arguments, kwargs: Keywords) -> Iterator[tuple[Place, int, Any]]:
        """Every array with dimensions: where it lies, its number among all leaves, and itself."""
        number = 0
        given: list[tuple[int | str, Any]] = [*enumerate(args), *((name, kwargs[name]) for name in sorted(kwargs))]
        for argument, value in given:
            for place, leaf in enumerate(self._leaves(value)):
                if self._shape(leaf):
                    yield (argument, place), number, leaf
                number += 1

    def _found(self, place: Place, number: int, leaf: Any) -> Found:
        is_around = str(place[0]).endswith(AROUND)
        shape, devices = self._shape(leaf), 1
        if place[0] in self.whole:
            shape = shape_of(leaf)
        elif shape != shape_of(leaf):
            devices = self.devices
        return Found(number, shape, _reference(leaf), is_around, _content(leaf), devices)

    def _shape(self, leaf: Any) -> tuple[int, ...]:
        """The shape on one device, as a trace has it."""
        shape = shape_of(leaf)
        return shape[1:] if self.devices and shape[:1] == (self.devices,) else shape

    def _is_state(self, leaf: Any, parameters: Collection[Aval]) -> bool:
        """Whether it is no data by itself: it has the shape of a parameter, or is a key for random numbers.

        Where arrays are mapped, those that are given to all devices alike (``in_axes=None``) have their own shape.
        """
        if _is_numpys(leaf):
            return False
        shape, dtype = aval_of(leaf)
        return (shape, dtype) in parameters or (self._shape(leaf), dtype) in parameters or _is_key(shape, dtype)

    def takes_all(self, found: Sequence[Found], leaves: Sequence[Any]) -> bool | None:
        """Whether a gradient that is given these is taken on all of the arrays that were found; None: not known yet."""
        is_known = self.stay is False or self.are_whole(found, leaves)
        return True if is_known else None if self.stay is None else False

    def are_whole(self, found: Sequence[Found], leaves: Sequence[Any]) -> bool:
        """Whether a gradient that is given these is taken on all of the arrays that were found.

        Of what its function closes over nobody sees which parts are taken.
        """
        shapes = set(map(self._shape, leaves))
        if any(may_choose(leaf, is_given=True) for leaf in leaves):
            return False
        return all(each.shape in shapes and not each.is_around for each in found)

    def _keep(self, place: Place, leaf: object) -> None:
        made = _reference(leaf)
        if made is not None:
            self._before[place] = made

    def _look(self, args: Arguments, kwargs: Keywords, parameters: Collection[Aval]) -> list[Found]:
        new, same = list[Found](), list[Found]()
        self._looks, is_first = self._looks + 1, not self._before
        for place, number, leaf in self._all(args, kwargs):
            tally = self._tallies.setdefault(place, _Tally(number))
            tally.looks += 1
            before = self._before.get(place)
            is_same = before is not None and before() is leaf
            if is_same and not self._outputs.hold(leaf):
                tally.same += 1
                if not self._is_state(leaf, parameters):
                    same.append(self._found(place, number, leaf))
            elif not self._outputs.hold(leaf) and not self._is_state(leaf, parameters):
                tally.new += 1
                new.append(self._found(place, number, leaf))
            self._keep(place, leaf)
        self.stay = None if is_first and new else not new
        if self._looks >= LOOKS:
            self._settle(parameters)
        return new or same

    def _settle(self, parameters: Collection[Aval]) -> None:
        """From here on the arguments are known that hold the batch."""
        new = {place: tally.number for place, tally in self._tallies.items() if 2 * tally.new > tally.looks}
        # Of two gradients on each batch (SAM) one is given the very same again.
        same = {place: tally.number for place, tally in self._tallies.items() if 2 * tally.same >= tally.looks}
        self.stay = not new
        places: dict[int | str, list[tuple[int, int]]] = {}
        for (argument, place), number in (new or self._untouched(same, parameters)).items():
            places.setdefault(argument, []).append((place, number))
        self._places, self._before, self._tallies = places, {}, {}

    def _untouched(self, same: dict[Place, int], parameters: Collection[Aval]) -> dict[Place, int]:
        """Of arrays that are the same with each call, those that may be data."""
        kept: dict[Place, Any] = {place: self._before[place]() for place in same if place in self._before}
        return {
            place: same[place] for place, leaf in kept.items()
            if leaf is not None and not self._is_state(leaf, parameters)
        }  # fmt: skip


def agreed(found: Sequence[Found]) -> int | None:
    """The samples of a batch: the first dimension of all its arrays, or of most; None where they don't agree.

    What a function closes over may be anything: it has no voice where it is of another length than the rest.
    """
    counts = Counter(each.rows for each in found)
    if len(counts) > 1:
        counts = Counter(each.rows for each in found if not each.is_around)
    if not counts:
        return None
    rows, times = counts.most_common(1)[0]
    return rows if len(counts) == 1 or 2 * times > counts.total() else None


def without_models(leaves: Leaves, around: Keywords, trained: Collection[Aval]) -> Keywords:
    """What a function closes over, without structures of which all arrays have the shape of something ``trained``."""

    def is_model(value: Any) -> bool:
        avals = [aval_of(leaf) for leaf in leaves(value) if shape_of(leaf)]
        return bool(avals) and not hasattr(value, "dtype") and all(aval in trained for aval in avals)

    return {name: value for name, value in around.items() if not is_model(value)}


def data_in(leaves: Collection[Any], trained: Sequence[Collection[Aval]]) -> list[Any]:
    """Arrays among these that aren't of the shape of something ``trained``."""
    return [leaf for leaf in leaves if shape_of(leaf) and not any(aval_of(leaf) in known for known in trained)]


def _is_key(shape: tuple[int, ...], dtype: str) -> bool:
    return dtype.startswith(_KEYS) or (dtype == "uint32" and shape[-1:] == (2,))


def is_number(leaf: Any) -> bool:
    """Whether it has no dimensions, and isn't a key for random numbers."""
    return not shape_of(leaf) and not str(getattr(leaf, "dtype", "")).startswith(_KEYS)


def may_choose(leaf: Any, *, is_given: bool) -> bool:
    """Whether parts of data may be taken by it: a number, a key for random numbers, or indices that weren't given."""
    if not hasattr(leaf, "dtype"):
        return type(leaf) is int
    shape, dtype = aval_of(leaf)
    return _is_key(shape, dtype) or ("int" in dtype and (not shape or not is_given))


def _is_numpys(leaf: Any) -> bool:
    return type(leaf).__module__.partition(".")[0] == "numpy"


def _content(leaf: Any) -> bytes:
    """Of an array of NumPy's, which may be filled anew in place, elements from all over it; JAX's can't change."""
    if not _is_numpys(leaf) or not hasattr(leaf, "flat"):
        return b""
    return bytes(leaf.flat[:: max(1, leaf.size // ELEMENTS)].tobytes())


def _reference(leaf: Any) -> Callable[[], object] | None:
    """A weak reference to an array; None to what can't have one, and to what has no dimensions."""
    if not shape_of(leaf):
        return None
    try:
        return weakref.ref(leaf)
    except TypeError:
        return None
