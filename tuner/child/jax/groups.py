"""Several calls of a training step in one: what they are given, and the compiled function that runs them.

What a call is given of the results of the one before goes round in a loop of JAX's (``scan``). Where somebody reads
what a call gave before the group is complete, those so far run one by one, by the body of that loop.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .deferred import real, stand_in
from .types import Call

MOST_BYTES = 1 << 26
"""Of the batches of a group, and of what its calls give beside their state: they are kept until it has run."""
EFFECTS = "the training step has an effect beside its results: it calls Python, or prints"
LARGE = "the batches of {} steps, and what these give beside their state, take {} MiB"
SEVERAL = "the training step's arrays lie on several devices"
CHANGES = "the training step's state doesn't keep its shapes and types"
NUMBER = "the training step is given a number of Python's, or a setting, that changes with each call"
KEYS = "the training step gives keys for random numbers"
WEAK = "the training step is given arrays whose type goes by what they meet"
OTHER = "the training step is given {}"
_NUMBERS = frozenset({bool, int, float, complex})
GUARD = threading.RLock()
"""Whoever has calls run does it alone: also a thread that saves the state."""


class UnfitError(Exception):
    """Calls of a function can't go together; it says why."""


@dataclass(frozen=True)
class Jax:
    """JAX's own functions, as they were before anything was replaced; ``array``: the class of its arrays.

    ``settings``: all that JAX is set to by which it computes otherwise.
    """

    jit: Call
    scan: Call
    stack: Call
    flatten: Call
    unflatten: Call
    narrowed: Call
    settings: Call
    array: Any


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

    Of the leaves that aren't ``carried`` some are the same in all calls (``fixed``), and the others a batch, on the
    host (``hosts``) or on the device (``puts``). Of the former some were put where the device is a processor, and are
    ``copied``: ``jax.device_put`` does that with nothing there, and the script may write to it. Raises ``UnfitError``.
    """

    def __init__(self, jax: Jax, size: int, jitted: Any, given: Given) -> None:
        self.size, self.structure, self.carried = size, given.structure, dict(given.carried)
        self.jax, self._jitted, self._settings = jax, jitted, jax.settings()
        self.fixed: dict[int, Any] = {}
        self.hosts: dict[int, tuple[Any, Any, Any]] = {}
        self.puts: dict[int, Any] = {}
        self.copied: dict[int, Any] = {}
        leaves = list(map(real, given.leaves))
        for number, leaf in enumerate(leaves):
            if number not in self.carried:
                self._sort(number, leaf, given.before[number])
        self.results = sorted(set(self.carried.values()))
        self.first = [next(n for n, result in self.carried.items() if result == each) for each in self.results]
        args, kwargs = jax.unflatten(given.structure, leaves)
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

    def _sort(self, number: int, leaf: Any, before: Any) -> None:
        """What a leaf is to a group that isn't carried."""
        if isinstance(leaf, self.jax.array):
            if leaf is before:
                self.fixed[number] = leaf
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
        elif _is_same(leaf, before):
            self.fixed[number] = leaf
        else:
            raise UnfitError(NUMBER if type(leaf) in _NUMBERS else OTHER.format(type(leaf).__name__))

    def _check(self, leaves: Sequence[Any], jaxpr: Any) -> None:
        if jaxpr.effects or _calls_python(jaxpr.jaxpr):
            raise UnfitError(EFFECTS)
        arrays = [leaf for leaf in leaves if isinstance(leaf, self.jax.array)]
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

    def fits(self, leaves: Sequence[Any], newest: Sequence[Any] | None) -> bool:
        """Whether a call with these can go with others; ``newest``: what the one before it in its group gave."""
        if self.jax.settings() != self._settings:
            return False
        if newest is None:
            if not self._can_begin_with(leaves):
                return False
        elif any(leaves[number] is not newest[result] for number, result in self.carried.items()):
            return False
        for number, known in self.fixed.items():
            if not _is_same(leaves[number], known):
                return False
        for number, (shape, dtype, _) in self.hosts.items():
            leaf = leaves[number]
            if getattr(leaf, "shape", None) != shape or leaf.dtype != dtype:
                return False
            if isinstance(leaf, self.jax.array) and number not in self.copied:
                return False
        for number, (aval, sharding) in (*self.puts.items(), *self.copied.items()):
            leaf = leaves[number]
            if getattr(leaf, "aval", None) != aval or leaf.sharding != sharding or leaf.is_deleted():
                return False
        return True

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
        leaves = self._leaves
        state, fixed, puts = self.state_of(leaves), self.arrays_fixed, [leaves[number] for number in self.puts]
        hosts = [sys.modules["numpy"].asarray(leaves[number], kind[2]) for number, kind in self.hosts.items()]
        stacked = [sys.modules["numpy"].stack([leaf] * self.size) for leaf in hosts]
        self._one = self.jax.jit(self._step).lower(state, fixed, hosts, puts).compile()
        apart = [[leaf] * self.size for leaf in puts]
        self._all = self.jax.jit(self._steps).lower(state, fixed, stacked, apart).compile()
        self._leaves = []

    @property
    def arrays_fixed(self) -> list[Any]:
        """Those of what is the same in all calls that are arrays; JAX has the others in what it compiles."""
        return [leaf for leaf in self.fixed.values() if isinstance(leaf, self.jax.array)]

    def state_of(self, leaves: Sequence[Any]) -> list[Any]:
        """What goes round, of a first call's leaves."""
        return [real(leaves[number]) for number in self.first]

    def run_one(self, state: Sequence[Any], hosts: Sequence[Any], puts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """One call: what goes round, and what it gives beside that."""
        assert self._one is not None
        found: tuple[list[Any], list[Any]] = self._one(list(state), self.arrays_fixed, list(hosts), list(puts))
        return found

    def run_all(self, state: Sequence[Any], hosts: Sequence[Any], puts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """A group: what goes round in the end, and of each call what it gives beside that."""
        assert self._all is not None
        found: tuple[list[Any], list[Any]] = self._all(list(state), self.arrays_fixed, list(hosts), list(puts))
        return found

    def _step(
        self, state: Sequence[Any], fixed: Sequence[Any], hosts: Sequence[Any], puts: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        of_results = dict(zip(self.results, state, strict=True))
        given = {number: of_results[result] for number, result in self.carried.items()}
        arrays = iter(fixed)
        for number, leaf in self.fixed.items():
            given[number] = next(arrays) if isinstance(leaf, self.jax.array) else leaf
        given.update(zip(self.hosts, hosts, strict=True))
        given.update(zip(self.puts, puts, strict=True))
        args, kwargs = self.jax.unflatten(self.structure, [given[number] for number in range(len(given))])
        made = self.jax.flatten(self._jitted(*args, **kwargs))[0]
        return [made[number] for number in self.results], [made[number] for number in self.others]

    def _steps(
        self, state: Sequence[Any], fixed: Sequence[Any], hosts: Sequence[Any], puts: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        fed = hosts, [self.jax.stack(each) for each in puts]
        last, others = self.jax.scan(lambda carry, each: self._step(carry, fixed, *each), state, fed, length=self.size)
        return last, [[each[number] for each in others] for number in range(self.size)]


class Group:
    """Calls that wait to run together, from the ``state`` on that the first one is given."""

    def __init__(self, plan: Plan, state: Sequence[Any], counted: Counted) -> None:
        self.plan = plan
        self.newest: list[Any] | None = None
        self._state, self._counted = state, counted
        self._hosts = [
            sys.modules["numpy"].empty((plan.size, *shape), dtype) for shape, _, dtype in plan.hosts.values()
        ]
        self._puts: list[list[Any]] = [[] for _ in plan.puts]
        self._late: list[tuple[Any, int, Any]] = []
        self._waiting: list[tuple[_Results, _Results]] = []
        self._length = 0

    @property
    def waiting(self) -> int:
        """How many of its calls haven't run."""
        return len(self._waiting)

    def add(self, leaves: Sequence[Any]) -> list[Any]:
        """A further call. Gives stand-ins for its results, and the results themselves where the group is complete."""
        plan, number = self.plan, self._length
        for buffer, place in zip(self._hosts, plan.hosts, strict=True):
            leaf = real(leaves[place])
            if place in plan.copied and not leaf.is_ready():
                self._late.append((buffer, number, leaf))  # it lies in memory of JAX's own
            else:
                buffer[number] = sys.modules["numpy"].asarray(leaf)  # the script may use its array again
        for kept, place in zip(self._puts, plan.puts, strict=True):
            kept.append(real(leaves[place]))
        state, others = _Results(self, number), _Results(self, number)
        self._waiting.append((state, others))
        self._length += 1
        found: list[Any] = [None] * len(plan.avals)
        for result in plan.results:
            found[result] = stand_in(plan.avals[result], state, result)
        for result in plan.others:
            found[result] = stand_in(plan.avals[result], others, result)
        self.newest = found
        if self._length < plan.size:
            return found
        self.settle()
        return list(map(real, found))

    def settle(self) -> None:
        """Has those run that wait, all at once where the group is complete."""
        with GUARD:
            waiting = self._waiting
            if not waiting:
                return
            for buffer, number, leaf in self._late:
                buffer[number] = sys.modules["numpy"].asarray(leaf)
            self._late = []
            if len(waiting) == self.plan.size and self._runs_all():
                self._counted.together += self.plan.size
            else:
                self._run_each()
                self._counted.alone += len(waiting)
            self._waiting, self.newest = [], None

    def _runs_all(self) -> bool:
        plan = self.plan
        try:
            last, others = plan.run_all(self._state, self._hosts, self._puts)
        except Exception as error:  # one by one they may fit
            self._counted.failed = f"{type(error).__name__}: {error}"
            return False
        for (_, told), values in zip(self._waiting, others, strict=True):
            told.are(zip(plan.others, values, strict=True))
        self._waiting[-1][0].are(zip(plan.results, last, strict=True))
        return True

    def _run_each(self) -> None:
        state = self._state
        for number, (results, told) in enumerate(self._waiting):
            state, others = self._run(number, state)
            results.are(zip(self.plan.results, state, strict=True))
            told.are(zip(self.plan.others, others, strict=True))

    def _run(self, number: int, state: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        return self.plan.run_one(state, [each[number] for each in self._hosts], [each[number] for each in self._puts])

    def state_behind(self, number: int) -> dict[int, Any]:
        """What goes round, behind a call within a group that has run: by running those up to it again."""
        self._counted.again += 1
        state = self._state
        for each in range(number + 1):
            state = self._run(each, state)[0]
        return dict(zip(self.plan.results, state, strict=True))


@dataclass
class Counted:
    """Calls that ran ``together``, and ``alone`` since a result was read early; ``again``: states that were read later.

    ``failed``: why a group didn't run as one.
    """

    together: int = 0
    alone: int = 0
    again: int = 0
    failed: str = ""


class _Results:
    """Of one call: those that go round, or the others. Whoever holds one of the latter doesn't hold the batches."""

    def __init__(self, group: Group, number: int) -> None:
        self._group: Group | None = group
        self._number = number
        self._values: dict[int, Any] = {}

    def are(self, values: Any) -> None:
        """They are computed, or on their way."""
        self._values.update(values)
        self._group = None

    def value(self, number: int) -> Any:
        """One of them."""
        with GUARD:
            if self._group is not None:
                self._group.settle()
            if self._group is not None:  # it has run, and they were none of its results
                self.are(self._group.state_behind(self._number))
            return self._values[number]

    def has(self, number: int) -> bool:
        """Whether it is computed, or on its way."""
        return number in self._values


def _is_same(leaf: Any, known: Any) -> bool:
    """Whether JAX would compute the same by both, beside arrays that may change in place."""
    if leaf is known:
        return True
    return type(leaf) is type(known) and type(leaf) in _NUMBERS and repr(leaf) == repr(known)


def _is_cached(jitted: Any) -> bool:
    """Whether JAX has it compiled for some call."""
    return bool(getattr(jitted, "_cache_size", int)())


def _kind_of(array: Any) -> tuple[Any, ...]:
    return array.shape, array.dtype, array.weak_type


def _bytes_of(array: Any) -> int:
    return int(math.prod(array.shape) * getattr(array.dtype, "itemsize", 8))


def _calls_python(jaxpr: Any) -> bool:
    """Whether an operation of it, or of what it calls, is one of Python's."""
    for equation in jaxpr.eqns:
        if "callback" in equation.primitive.name:
            return True
        for value in equation.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns") and _calls_python(inner):
                    return True
    return False
