"""PyTorch's learning rates: a factor on what the script gives its optimizers, schedules included."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..evidence import Finding
from ..records import Evidence
from ..session import Session
from .types import Group, Optimizer, Result, Scheduler

KNOB = "lr_scale"
SETS_ITSELF = "the script sets its learning rate itself"
OTHER_BATCHES = "it goes with a size of the batches that isn't in effect"

ADDED_LATE = "a parameter group is added in the middle of training: whether its rate is scaled already can't be told"
MADE_LATE = "an optimizer is made in the middle of training: whether its rate is scaled already can't be told"


@dataclass(frozen=True)
class _Scaled:
    """A group whose rate was scaled: an optimizer keeps the very dictionary that it is given, and so does the script.

    ``first``: its first parameter, which tells it from another one of the same id.
    """

    written: float
    rate: float
    first: weakref.ref[Any]

    def is_of(self, group: Group) -> bool:
        """Whether the group is the one that was scaled."""
        return bool(group["params"]) and self.first() is group["params"][0]


class RateWatch:
    """Scales the rate of every parameter group as it is added; a scheduler made later starts from the scaled one.

    Once only: a group that is given to another optimizer carries its scaled rate along. A rate that comes with a group
    or an optimizer in the middle of training may have been computed from scaled ones, and stays as it is, unless the
    script is known to write it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.groups = 0
        self.obstacle = ""
        """Why the rates aren't those of the script times the factor; "" where they are."""
        self._given: weakref.WeakKeyDictionary[Optimizer, list[float]] = weakref.WeakKeyDictionary()
        self._scaled: dict[int, _Scaled] = {}
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()
        self._dropped = self._trains = False
        known = session.request.knowledge
        self._written = {rate for _, rate in known.rates} | {r for *_, rates in known.group_rates for r in rates}
        """As the script wrote them: those that the baseline stepped with, and those that were scaled."""
        self._rates: set[float] = set()
        """What became of these."""

    def group_added(self, optimizer: Optimizer, *, states_rate: bool) -> None:
        """Called after a parameter group was added. ``states_rate``: it came with a rate of its own."""
        group = optimizer.param_groups[-1]
        rate = group.get("lr")
        if not isinstance(rate, (int, float)):
            return
        if states_rate and optimizer in self._stepped:
            self._found(ADDED_LATE)
        elif not self.session.knobs.wants(KNOB) or self._dropped or self._is_scaled(group):
            pass
        elif self._trains and optimizer not in self._stepped and not self._is_written(rate):
            self._found(MADE_LATE)
        else:
            group["lr"] = rate * float(self.session.request.config[KNOB])
            self._written.add(rate)
            self._rates.add(group["lr"])
            if group["params"]:
                self._scaled[id(group)] = _Scaled(rate, group["lr"], weakref.ref(group["params"][0]))
        self.groups += 1
        self._given.setdefault(optimizer, []).append(float(group.get("initial_lr") or group["lr"]))

    def _is_written(self, rate: float) -> bool:
        """Whether the script writes this rate, and doesn't compute it from one that was scaled."""
        return _is_among(rate, self._written) and not _is_among(rate, self._rates)

    def _is_scaled(self, group: Group) -> bool:
        """Whether the group carries a scaled rate; one that is neither this nor what was written is the script's."""
        known = self._scaled.get(id(group))
        if known is None or not known.is_of(group) or group["lr"] == known.written:
            return False
        if known.rate not in (group["lr"], group.get("initial_lr")):
            self._found(SETS_ITSELF)
        return True

    def _found(self, obstacle: str) -> None:
        if self.session.knobs.wants(KNOB) and self.session.applied is not None:
            self.session.note(f"lr_scale: {obstacle}")
        self.obstacle = self.obstacle or obstacle

    def schedule_made(self, original: Callable[[Scheduler], Result]) -> Callable[[Scheduler], Result]:
        """A patch of a scheduler's ``_initial_step``: it keeps the rates that it began with."""

        def _initial_step(scheduler: Scheduler) -> Result:
            self._schedulers.add(scheduler)
            return original(scheduler)

        return _initial_step

    def drop(self) -> None:
        """The batches that the factor goes with aren't in effect: rates become the script's own, and stay so."""
        scale, is_anew = float(self.session.request.config[KNOB]), not self._dropped
        self._dropped = True
        self._found(OTHER_BATCHES)
        for optimizer, given in self._given.items() if is_anew else ():
            scaled = [group.get("initial_lr", group.get("lr")) == rate
                      for group, rate in zip(optimizer.param_groups, given, strict=False)]  # fmt: skip
            for group in (group for group, ours in zip(optimizer.param_groups, scaled, strict=False) if ours):
                group.update({name: group[name] / scale for name in ("lr", "initial_lr") if name in group})
            for scheduler in self._schedulers:
                bases = getattr(scheduler, "base_lrs", None)
                if getattr(scheduler, "optimizer", None) is optimizer and isinstance(bases, list):
                    ours = [*scaled, *[False] * len(bases)]
                    bases[:] = [base / scale if mine else base for base, mine in zip(bases, ours, strict=False)]
            given[:] = [rate / scale if ours else rate for rate, ours in zip(given, scaled, strict=False)]

    def given(self, optimizer: Optimizer) -> list[float]:
        """The rates of its groups as they were made, scaled."""
        return self._given.get(optimizer, [])

    def took_step(self, optimizer: Optimizer) -> None:
        """From here on it is in the middle of its training."""
        self._trains = True
        self._stepped.add(optimizer)

    def stepped(self, optimizer: Optimizer) -> None:
        """Looks whether the rates are still those given. A scheduler keeps them as ``initial_lr``."""
        self.took_step(optimizer)
        given = self._given.get(optimizer)
        if given is None or self.obstacle == SETS_ITSELF:
            return
        for group, rate in zip(optimizer.param_groups, given, strict=False):
            now = group.get("initial_lr", group.get("lr"))
            if isinstance(now, (int, float)) and now != rate:
                self.obstacle = SETS_ITSELF

    def observe(self) -> None:
        """What the script wrote, and the evidence."""
        facts, knobs = self.session.facts, self.session.knobs
        if self.groups:
            facts.as_written[KNOB] = 1.0
        if self.obstacle:
            facts.left_out[KNOB] = self.obstacle
        if KNOB not in knobs.requested:
            return
        if not self.groups:
            knobs.inapplicable(KNOB, "no optimizer has a learning rate", sites=0)
        elif self.obstacle:
            knobs.report(KNOB, Finding(Evidence.CONTRADICTED, self.obstacle, None, self.groups))
        else:
            scale = knobs.requested[KNOB]
            knobs.report(KNOB, Finding(Evidence.VERIFIED, "", scale, self.groups, self.groups))


def _is_among(rate: float, rates: Iterable[float]) -> bool:
    return any(math.isclose(rate, each) for each in rates)
