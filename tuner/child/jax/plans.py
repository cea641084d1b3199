"""How calls of one training step go together: what each is given, and the compiled function that runs several.

What a call is given of the results of the one before goes round in a loop of JAX's (``scan``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .deferred import real
from .graphs import operations_of
from .types import Arguments, Call, Keywords, statics_of

MOST_BYTES = 1 << 26
"""Of the batches of a group, and of what its calls give beside their state: they are kept until it has run."""
EFFECTS = "the training step has an effect beside its results: it calls Python, or prints"
LARGE = "the batches of {} steps, and what these give beside their state, take {} MiB"
SEVERAL = "the training step's arrays lie on several devices"
CHANGES = "the training step's state doesn't keep its shapes and types"
SETTING = "the training step is given a setting, which it is compiled for, that changes with each call"
CONVOLVES = "the training step convolves, which takes a processor many times as long in a loop of XLA's"
KEYS = "the training step gives keys for random numbers"
WEAK = "the training step is given arrays whose type goes by what they meet"
OTHER = "the training step is given {}"
_NUMBERS = frozenset({bool, int, float, complex})


Ran = tuple[list[Any], list[Any]]


class UnfitError(Exception):
    """Calls of a function can't go together; it says why."""


@dataclass(frozen=True)
class Jax:
    """JAX's own functions, as they were before anything was replaced; ``array``: the class of its arrays.

    ``settings``: all that JAX is set to by which it computes otherwise; ``has_doubles``: whether it
    has any; ``doubles`` sets that for a while; ``transfers``: what lets arrays be put on the device for a while.
    """

    jit: Call
    scan: Call
    stack: Call
    flatten: Call
    unflatten: Call
    narrowed: Call
    settings: Call
    array: Any
    has_doubles: Call
    doubles: Call
    transfers: Call


@dataclass(frozen=True)
class Given:
    """What a call is given: ``leaves`` in a ``structure``. ``before``: the leaves of the call before, of the same one.

    ``carried``: numbers of leaves that are results of the call before → the numbers of these.
    """

    structure: Any
    leaves: Sequence[Any]
    before: Sequence[Any]
    carried: Mapping[int, int]


class Plan:
    """How ``size`` calls of one function go together, by what one of them is given.

    Of the leaves that aren't ``carried`` some are the same in all calls: settings (``fixed``), and arrays that are the
    same within a group (``same``). The others are a batch, on the host (``hosts``) or on the device (``puts``), and
    ``numbers`` of Python's, each of which stays one to the step: their types go by what they meet. Of what is on the
    host some was put where the device is a processor, and is ``copied``: ``jax.device_put`` does that with nothing
    there, and the script may write to it. Raises ``UnfitError``.
    """

    def __init__(self, jax: Jax, size: int, jitted: Any, given: Given) -> None:
        self.size, self.structure, self.carried = size, given.structure, dict(given.carried)
        self.jax, self._jitted, self._settings = jax, jitted, jax.settings()
        self._has_doubles = jax.has_doubles()
        self.fixed: dict[int, Any] = {}
        self.same: dict[int, tuple[Any, Any]] = {}
        self.numbers: dict[int, type] = {}
        self.hosts: dict[int, tuple[Any, Any, Any]] = {}
        self.puts: dict[int, Any] = {}
        self.copied: dict[int, Any] = {}
        leaves = list(map(real, given.leaves))
        args, kwargs = jax.unflatten(given.structure, leaves)
        settings = self._settings_in(args, kwargs, statics_of(jitted))
        for number, leaf in enumerate(leaves):
            if number not in self.carried:
                self._sort(number, leaf, given.before[number], is_setting=number in settings)
        self.results = sorted(set(self.carried.values()))
        self.first = [next(n for n, result in self.carried.items() if result == each) for each in self.results]
        traced = jitted.trace(*args, **kwargs)
        jaxpr = traced.jaxpr
        self.avals = list(jaxpr.out_avals)
        self.made = jax.flatten(traced.out_info)[1]
        self.others = [number for number in range(len(self.avals)) if number not in self.results]
        self._check(leaves, jaxpr)
        self._leaves = leaves
        self._was_cached = _is_cached(jitted)
        self._places = [leaves[number].sharding for number in self.first]
        self._one: Call | None = None
        self._all: Call | None = None

    # whether they can

    def _settings_in(self, args: Arguments, kwargs: Keywords, statics: Collection[int | str]) -> set[int]:
        """Numbers of the leaves in the arguments that the step is compiled for."""
        found, number = set[int](), 0
        given: list[tuple[set[int | str], Any]] = [({at, at - len(args)}, value) for at, value in enumerate(args)]
        given += [({name}, kwargs[name]) for name in sorted(kwargs)]
        for names, value in given:
            count = len(self.jax.flatten(value)[0])
            if not names.isdisjoint(statics):
                found.update(range(number, number + count))
            number += count
        return found

    def _sort(self, number: int, leaf: Any, before: Any, *, is_setting: bool) -> None:
        """What a leaf is to a group that isn't carried."""
        if is_setting and _is_number(leaf):
            if not _is_same(leaf, before):
                raise UnfitError(SETTING)
            self.fixed[number] = leaf
        elif isinstance(leaf, self.jax.array):
            if leaf is before:
                self.same[number] = leaf.aval, leaf.sharding
            elif leaf.weak_type:
                raise UnfitError(WEAK)
            else:
                self.puts[number] = leaf.aval, leaf.sharding
                if {device.platform for device in leaf.sharding.device_set} == {"cpu"}:
                    self.copied[number] = self.puts.pop(number)
                    self.hosts[number] = leaf.shape, leaf.dtype, leaf.dtype
        elif hasattr(leaf, "_base_array"):
            self.puts[number] = leaf.aval, leaf.sharding
        elif isinstance(leaf, (sys.modules["numpy"].ndarray, sys.modules["numpy"].generic)):
            self.hosts[number] = leaf.shape, leaf.dtype, self.jax.narrowed(leaf.dtype)
        elif type(leaf) in _NUMBERS:
            self.numbers[number] = type(leaf)
        elif leaf is before:
            self.fixed[number] = leaf
        else:
            raise UnfitError(OTHER.format(type(leaf).__name__))

    def _check(self, leaves: Sequence[Any], jaxpr: Any) -> None:
        operations = {each.primitive.name for each in operations_of(jaxpr.jaxpr)}
        if jaxpr.effects or any("callback" in name for name in operations):
            raise UnfitError(EFFECTS)
        arrays = [leaf for leaf in leaves if isinstance(leaf, self.jax.array)]
        on = {device.platform for leaf in arrays for device in leaf.sharding.device_set}
        if on == {"cpu"} and "conv_general_dilated" in operations:
            raise UnfitError(CONVOLVES)
        if any(len(leaf.sharding.device_set) > 1 for leaf in arrays):
            raise UnfitError(SEVERAL)
        if any(not hasattr(aval.dtype, "itemsize") or "key<" in str(aval.dtype) for aval in self.avals):
            raise UnfitError(KEYS)
        if any(_kind_of(leaves[number]) != _kind_of(self.avals[result]) for number, result in self.carried.items()):
            raise UnfitError(CHANGES)
        batch = [leaves[number] for number in (*self.hosts, *self.puts)]
        size = self.size * sum(map(_bytes_of, (*batch, *(self.avals[number] for number in self.others))))
        if size > MOST_BYTES:
            raise UnfitError(LARGE.format(self.size, -(-size >> 20)))

    @property
    def is_stale(self) -> bool:
        """Whether the script has had JAX forget what it had compiled: the function may be another one by now."""
        return self._was_cached and not _is_cached(self._jitted)

    def fits(self, leaves: Sequence[Any], newest: Sequence[Any] | None, same: Sequence[Any]) -> bool:
        """Whether a call with these can go with others: with none yet, or behind one that gave ``newest``, in a group
        in which the arrays of ``same`` are.
        """
        if self.jax.settings() != self._settings:
            return False
        if not (self._can_begin_with(leaves) if newest is None else self._goes_on(leaves, newest, same)):
            return False
        if not all(_is_same(leaves[number], known) for number, known in self.fixed.items()):
            return False
        if not all(self._holds(kind, leaves[number]) for number, kind in self.numbers.items()):
            return False
        for number, (shape, dtype, _) in self.hosts.items():
            leaf = leaves[number]
            if getattr(leaf, "shape", None) != shape or leaf.dtype != dtype:
                return False
            if isinstance(leaf, self.jax.array) and number not in self.copied:
                return False
        for number, (aval, sharding) in (*self.puts.items(), *self.copied.items(), *self.same.items()):
            leaf = real(leaves[number])
            if getattr(leaf, "aval", None) != aval or leaf.sharding != sharding or leaf.is_deleted():
                return False
        return True

    def _holds(self, kind: type, leaf: Any) -> bool:
        """Whether JAX has a number's type, and room for its value: it raises an error where it hasn't."""
        if kind is not int:
            return type(leaf) is kind
        numpy = sys.modules["numpy"]
        most: int = numpy.iinfo(self.jax.narrowed(numpy.dtype("int64"))).max
        return type(leaf) is int and -most <= leaf <= most

    def _goes_on(self, leaves: Sequence[Any], newest: Sequence[Any], same: Sequence[Any]) -> bool:
        """Whether a call is given what the one before it gave, and the arrays that the group has."""
        if any(leaves[number] is not newest[result] for number, result in self.carried.items()):
            return False
        return all(leaves[number] is known for number, known in zip(self.same, same, strict=True))

    def _can_begin_with(self, leaves: Sequence[Any]) -> bool:
        """Whether what goes round from a first call on is of the kind that it was, and lies where that did."""
        for number, result in self.carried.items():
            leaf = real(leaves[number])
            if not isinstance(leaf, self.jax.array) or _kind_of(leaf) != _kind_of(self.avals[result]):
                return False
            place = self.results.index(result)
            if leaf.is_deleted() or leaf is not real(leaves[self.first[place]]):
                return False
            if leaf.sharding != self._places[place]:
                return False
        return True

    # what runs them

    def compile(self) -> None:
        """Has both functions compiled, with JAX set as it is now: it may be set otherwise where a result is read."""
        state, same, hosts, apart = self._given(self._leaves)
        stacked = [sys.modules["numpy"].stack([leaf] * self.size) for leaf in hosts]
        several = [[leaf] * self.size for leaf in apart]
        self._one = self.jax.jit(self._step).lower(state, same, hosts, apart).compile()
        self._all = self.jax.jit(self._steps).lower(state, same, stacked, several).compile()
        self._leaves = []

    @property
    def apart(self) -> list[int]:
        """Which leaves a group is given one by one for each call."""
        return [*self.puts, *self.numbers]

    def _given(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """What one call of these runs with."""
        hosts = [sys.modules["numpy"].asarray(leaves[number], kind[2]) for number, kind in self.hosts.items()]
        return self.state_of(leaves), self.same_of(leaves), hosts, [leaves[number] for number in self.apart]

    def same_of(self, leaves: Sequence[Any]) -> list[Any]:
        """Arrays that are the same in all calls of a group, of a first call's leaves."""
        return [real(leaves[number]) for number in self.same]

    def state_of(self, leaves: Sequence[Any]) -> list[Any]:
        """What goes round, of a first call's leaves."""
        return [real(leaves[number]) for number in self.first]

    def run_one(self, state: Sequence[Any], same: Sequence[Any], hosts: Sequence[Any], apart: Sequence[Any]) -> Ran:
        """One call: what goes round, and what it gives beside that."""
        assert self._one is not None
        return self._run(self._one, state, same, hosts, apart)

    def run_all(self, state: Sequence[Any], same: Sequence[Any], hosts: Sequence[Any], apart: Sequence[Any]) -> Ran:
        """A group: what goes round in the end, and of each call what it gives beside that."""
        assert self._all is not None
        return self._run(self._all, state, same, hosts, apart)

    def _run(self, compiled: Call, *given: Sequence[Any]) -> Ran:
        """With JAX set as where it was compiled: whoever reads a result may have set it otherwise by now."""
        with self.jax.doubles(self._has_doubles), self.jax.transfers("allow"):
            found: Ran = compiled(*map(list, given))
        return found

    def _step(self, state: Sequence[Any], same: Sequence[Any], hosts: Sequence[Any], apart: Sequence[Any]) -> Ran:
        of_results = dict(zip(self.results, state, strict=True))
        given = {number: of_results[result] for number, result in self.carried.items()}
        given.update(self.fixed)
        given.update(zip(self.same, same, strict=True))
        given.update(zip(self.hosts, hosts, strict=True))
        given.update(zip(self.apart, apart, strict=True))
        args, kwargs = self.jax.unflatten(self.structure, [given[number] for number in range(len(given))])
        made = self.jax.flatten(self._jitted(*args, **kwargs))[0]
        return [made[number] for number in self.results], [made[number] for number in self.others]

    def _steps(self, state: Sequence[Any], same: Sequence[Any], hosts: Sequence[Any], apart: Sequence[Any]) -> Ran:
        fed = hosts, [self.jax.stack(each) for each in apart]  # numbers stay such whose types go by what they meet
        last, others = self.jax.scan(lambda carry, each: self._step(carry, same, *each), state, fed, length=self.size)
        return last, [[each[number] for each in others] for number in range(self.size)]


def _is_same(leaf: Any, known: Any) -> bool:
    """Whether JAX would compute the same by both, beside arrays that may change in place."""
    if leaf is known:
        return True
    return type(leaf) is type(known) and _is_number(leaf) and repr(leaf) == repr(known)


def _is_number(leaf: Any) -> bool:
    """Whether it is one of Python's or NumPy's."""
    return type(leaf) in _NUMBERS or isinstance(leaf, sys.modules["numpy"].generic)


def _is_cached(jitted: Any) -> bool:
    """Whether JAX has it compiled for some call."""
    return bool(getattr(jitted, "_cache_size", int)())


def _kind_of(array: Any) -> tuple[Any, ...]:
    return array.shape, array.dtype, array.weak_type


def _bytes_of(array: Any) -> int:
    return int(math.prod(array.shape) * getattr(array.dtype, "itemsize", 8))
