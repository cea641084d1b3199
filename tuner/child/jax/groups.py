"""Calls of a training step that wait to run together.

Where somebody reads what a call gave before the group is complete, those so far run one by one, by the body of the loop
that would run them all (``plans``).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .deferred import real, stand_in
from .plans import Plan, Ran

GUARD = threading.RLock()
"""Whoever has calls run does it alone: also a thread that saves the state."""


class Group:
    """Calls that wait to run together, from the state on that the first one is given among its ``leaves``.

    ``given``: those of its leaves that each of them has to be given; some may be stand-ins. ``state``: what goes round,
    as the first one is given it.
    """

    def __init__(self, plan: Plan, leaves: Sequence[Any], counted: Counted) -> None:
        self.plan = plan
        self.newest: list[Any] | None = None
        self.given = [leaves[number] for number in plan.same]
        self._same = plan.same_of(leaves)
        self.is_ended = False
        self.state, self._counted = plan.state_of(leaves), counted
        self._hosts = [
            sys.modules["numpy"].empty((plan.size, *shape), dtype) for shape, _, dtype in plan.hosts.values()
        ]
        self._apart: list[list[Any]] = [[] for _ in plan.apart]
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
        for kept, place in zip(self._apart, plan.apart, strict=True):
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
                if self.is_ended:
                    self._counted.unlike += len(waiting)
                else:
                    self._counted.alone += len(waiting)
            self._waiting, self.newest = [], None

    def _runs_all(self) -> bool:
        plan = self.plan
        try:
            last, others = plan.run_all(self.state, self._same, self._hosts, self._apart)
        except Exception as error:  # one by one they may fit
            self._counted.failed = f"{type(error).__name__}: {error}"
            return False
        for (_, told), values in zip(self._waiting, others, strict=True):
            told.are(zip(plan.others, values, strict=True))
        self._waiting[-1][0].are(zip(plan.results, last, strict=True))
        return True

    def _run_each(self) -> None:
        state = self.state
        for number, (results, told) in enumerate(self._waiting):
            state, others = self._run(number, state)
            results.are(zip(self.plan.results, state, strict=True))
            told.are(zip(self.plan.others, others, strict=True))

    def _run(self, number: int, state: Sequence[Any]) -> Ran:
        hosts, apart = ([each[number] for each in given] for given in (self._hosts, self._apart))
        return self.plan.run_one(state, self._same, hosts, apart)

    def state_behind(self, number: int) -> dict[int, Any]:
        """What goes round, behind a call within a group that has run: by running those up to it again."""
        self._counted.again += 1
        state = self.state
        for each in range(number + 1):
            state = self._run(each, state)[0]
        return dict(zip(self.plan.results, state, strict=True))


@dataclass
class Counted:
    """Calls that ran ``together``, ``alone`` since a result was read early, and one by one since what the next one was
    given was ``unlike`` theirs; ``again``: states that were read later.

    ``failed``: why a group didn't run as one.
    """

    together: int = 0
    alone: int = 0
    unlike: int = 0
    again: int = 0
    failed: str = ""

    @property
    def apart(self) -> int:
        """Those that ran one by one."""
        return self.alone + self.unlike


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

    def goes_on_from(self) -> Sequence[Any]:
        """An array at each end of the state that its group began with: those of one call are done together."""
        group = self._group
        state = [] if group is None else [group.state[0], group.state[-1]]
        return [array for array in state if not array.is_deleted()]
