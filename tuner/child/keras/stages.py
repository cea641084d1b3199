"""Trainings in stages, such as a head first and all of a model later: a figure of one is none of the other."""

from __future__ import annotations

import math
from typing import Any

from ..session import Session
from .types import Model

STAGES = "fit trains {:,} weights by now, and {:,} at first: "
BATCHES = "fit trains on batches of {} samples by now, and of {} at first: "
IN_TRIAL = "a trial lasts some seconds, and what it told of one of these stages may not hold for the other"
APPLIED = "the profile was proven in trials of some seconds, which may have seen one of these stages alone"


class StageWatch:
    """Says, once each, that other weights are trained, or larger or smaller batches, than in the first ``fit``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._first = 0
        self._first_size: object = None
        self._told = self._told_of_size = False

    def begins(self, model: Model) -> None:
        """A call of ``fit`` of the script's begins."""
        now = _trained(model)
        if self._told or not self._first or now in (0, self._first):
            return
        self._told = True
        self._tell(STAGES.format(now, self._first))

    def has_batches(self, size: object) -> None:
        """Those of a call of ``fit`` hold so many samples, as the script wrote it; None where that isn't known."""
        if type(size) is not int or size == self._first_size or self._told_of_size:
            return
        if self._first_size is None:
            self._first_size = size
            return
        self._told_of_size = True
        self._tell(BATCHES.format(size, self._first_size))

    def _tell(self, stages: str) -> None:
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
