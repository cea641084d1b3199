"""Steps of a screen that run together: each one's loss is told, and the last one is that of the script as written."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..session import Session
from ..watch import Watch
from .deferred import is_there
from .losses import number_of
from .steps import StepWatch


class _Called(NamedTuple):
    """Samples and steps by the end of a call, and its loss as ``StepWatch.newest_loss`` gives it."""

    samples: float
    steps: int
    loss: Any
    site: str
    devices: int


class Screened:
    """Of one trial. ``is_on``: whether its window ends at a number of samples; in any other nothing is done."""

    def __init__(self, session: Session, steps: StepWatch) -> None:
        self.session, self.steps = session, steps
        self._until = session.request.window.until_samples
        self.is_on = self._until > 0
        self._tells = Watch.LOSSES not in session.request.without
        self._counted, self._steps = (0.0, 0), 0
        self._called: list[_Called] = []

    def called(self, count: int) -> None:
        """The newest call, of so many steps, which may wait."""
        self._steps += count
        if self.is_on:
            self._called.append(_Called(self.session.clock.told_samples, self._steps, *self.steps.newest_loss()))
            self.steps.seen_loss = None

    @property
    def is_enough(self) -> bool:
        """Whether the window ends with the steps that were called."""
        return bool(self._called) and self._progress(self._called[-1]) >= self._until

    def run(self) -> None:
        """All these calls have run, and are about to be counted: tells the losses of all but the last of them."""
        run, self._called = self._called, []
        for call in run[:-1]:
            if self._tells and self.session.clock.total_steps and is_there(call.loss):
                loss = number_of(call.loss, call.devices)
                if loss is not None:
                    self.session.loss(loss, call.site, progress=self._progress(call))
        if run:
            self._counted, self.steps.seen_loss = (run[-1].samples, run[-1].steps), run[-1].loss

    def _progress(self, call: _Called) -> float:
        """What the clock will show behind a call that isn't counted yet."""
        clock, (samples, steps) = self.session.clock, self._counted
        by_samples = clock.total_samples and clock.total_samples + call.samples - samples
        return by_samples or float(clock.total_steps + call.steps - steps)
