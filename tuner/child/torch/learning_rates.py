"""PyTorch's learning rates: a factor on what the script gives its optimizers, schedules included."""

from __future__ import annotations

import weakref
from typing import Any

from ..session import Session

KNOB = "lr_scale"
SETS_ITSELF = "the script sets its learning rate itself"


class RateWatch:
    """Scales the rate of every parameter group as it is added; a scheduler made later starts from the scaled one."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.groups = 0
        self.set_by_script = False
        self._given: weakref.WeakKeyDictionary[Any, list[float]] = weakref.WeakKeyDictionary()

    def group_added(self, optimizer: Any) -> None:
        """Called after a parameter group was added, whose rate is the script's own."""
        group = optimizer.param_groups[-1]
        rate = group.get("lr")
        if not isinstance(rate, (int, float)):
            return
        if self.session.wants(KNOB):
            group["lr"] = rate * float(self.session.config[KNOB])
        self.groups += 1
        self._given.setdefault(optimizer, []).append(float(group["lr"]))

    def stepped(self, optimizer: Any) -> None:
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
        session = self.session
        if self.groups:
            session.as_written[KNOB] = 1.0
        if self.set_by_script:
            session.left_out[KNOB] = SETS_ITSELF
        if KNOB in session.config:
            if not self.groups:
                session.knob(KNOB, "not applicable", sites=0, changed=0, reason="no optimizer has a learning rate")
            elif self.set_by_script:
                session.knob(KNOB, "contradicted", sites=self.groups, reason=SETS_ITSELF)
            else:
                session.knob(KNOB, "verified", sites=self.groups, changed=self.groups, observed=session.config[KNOB])
