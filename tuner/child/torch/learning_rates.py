"""PyTorch's learning rates: a factor on what the script gives its optimizers, schedules included."""

from __future__ import annotations

import weakref

from ..evidence import Finding
from ..records import Evidence
from ..session import Session
from .types import Optimizer

KNOB = "lr_scale"
SETS_ITSELF = "the script sets its learning rate itself"


class RateWatch:
    """Scales the rate of every parameter group as it is added; a scheduler made later starts from the scaled one."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.groups = 0
        self.set_by_script = False
        self._given: weakref.WeakKeyDictionary[Optimizer, list[float]] = weakref.WeakKeyDictionary()

    def group_added(self, optimizer: Optimizer) -> None:
        """Called after a parameter group was added, whose rate is the script's own."""
        group = optimizer.param_groups[-1]
        rate = group.get("lr")
        if not isinstance(rate, (int, float)):
            return
        if self.session.knobs.wants(KNOB):
            group["lr"] = rate * float(self.session.request.config[KNOB])
        self.groups += 1
        self._given.setdefault(optimizer, []).append(float(group["lr"]))

    def given(self, optimizer: Optimizer) -> list[float]:
        """The rates of its groups as they were made, scaled."""
        return self._given.get(optimizer, [])

    def stepped(self, optimizer: Optimizer) -> None:
        """Looks whether the rates are still those given. A scheduler keeps them as ``initial_lr``."""
        given = self._given.get(optimizer)
        if given is None or self.set_by_script:
            return
        for group, rate in zip(optimizer.param_groups, given, strict=False):
            now = group.get("initial_lr", group.get("lr"))
            if isinstance(now, (int, float)) and now != rate:
                self.set_by_script = True

    def observe(self) -> None:
        """What the script wrote, and the evidence."""
        facts, knobs = self.session.facts, self.session.knobs
        if self.groups:
            facts.as_written[KNOB] = 1.0
        if self.set_by_script:
            facts.left_out[KNOB] = SETS_ITSELF
        if KNOB not in knobs.requested:
            return
        if not self.groups:
            knobs.inapplicable(KNOB, "no optimizer has a learning rate", sites=0)
        elif self.set_by_script:
            knobs.report(KNOB, Finding(Evidence.CONTRADICTED, SETS_ITSELF, None, self.groups))
        else:
            scale = knobs.requested[KNOB]
            knobs.report(KNOB, Finding(Evidence.VERIFIED, "", scale, self.groups, self.groups))
