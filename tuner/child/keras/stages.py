"""Trainings in stages, such as a head first and all of a model later: a figure of one is none of the other."""

from __future__ import annotations

import math
from typing import Any

from ..session import Session
from .types import Model

STAGES = "fit trains {:,} weights by now, and {:,} at first: "
IN_TRIAL = "a trial lasts some seconds, and what it told of one of these stages may not hold for the other"
APPLIED = "the profile was proven in trials of some seconds, which may have seen one of these stages alone"


class StageWatch:
    """Says, once, that another number of weights is trained than in the first call of ``fit``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._first = 0
        self._told = False

    def begins(self, model: Model) -> None:
        """A call of ``fit`` of the script's begins."""
        now = _trained(model)
        if self._told or not self._first or now in (0, self._first):
            return
        self._told = True
        stages = STAGES.format(now, self._first)
        if self._session.applied is not None:
            self._session.applied.say(stages + APPLIED)
        elif self._session.measuring:
            self._session.facts.remark(stages + IN_TRIAL)

    def ended(self, model: Model) -> None:
        """It has returned, or raised: the model has its weights by now."""
        self._first = self._first or _trained(model)


def _trained(model: Model) -> int:
    """Weights that are trained; 0 where they aren't made yet, or can't be counted."""
    try:
        weights: Any = model.trainable_variables
        return sum(math.prod(map(int, weight.shape)) for weight in weights)
    except Exception:
        return 0
