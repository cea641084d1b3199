"""Calls of what ``jax.pmap`` made: on one device as those of a compiled function, on several they aren't studied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..session import Session
from .steps import StepWatch
from .types import Arguments, Call, Keywords, shape_of

ON_SEVERAL = "the script trains by jax.pmap, over several devices: a trial has one, and no step is seen there"


class MapWatch:
    """Tells how many devices a call is mapped over."""

    def __init__(self, steps: StepWatch) -> None:
        self.steps = steps
        self._under_way = 0

    def calls(self, watched: Callable[[], Any], execute: Call, axes: Any, args: Arguments, kwargs: Keywords) -> Any:
        """A call, which ``watched`` does where it is on one device. ``axes``: ``in_axes``, as the script gives it."""
        if self.steps.stands_aside or self._devices(axes, args, kwargs) == 1:
            return watched()
        self._under_way += 1
        try:
            return execute(*args, **kwargs)
        finally:
            self._under_way -= 1

    def trains(self, session: Session) -> None:
        """A gradient is about to be taken; in a call on several devices it ends the trial."""
        if self._under_way and session.measuring and not self.steps.trained:
            session.fail("unsupported", ON_SEVERAL)
            session.stop(ON_SEVERAL, complete=False)

    def _devices(self, axes: Any, args: Arguments, kwargs: Keywords) -> int:
        """The length of what is mapped: as many devices compute."""
        if self.steps.jax.local_device_count() == 1:
            return 1
        given = list(args)
        if isinstance(axes, (tuple, list)):
            given = [value for value, axis in zip(args, axes, strict=False) if type(axis) is int]
        shapes = filter(None, map(shape_of, self.steps.leaves((given, kwargs))))
        return next((shape[0] for shape in shapes), 1)
