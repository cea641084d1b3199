"""A made-up machine whose clock goes on by what each run takes."""

from __future__ import annotations

from collections.abc import Callable

from tuner.model import Config, Outcome
from tuner.runner.replay import ReplayRunner


class Clocked(ReplayRunner):
    """A replay that takes time: each run as long as its outcome says."""

    def __init__(self, outcome_of: Callable[[Config], Outcome]) -> None:
        super().__init__(self._timed)
        self._timed_outcome = outcome_of
        self.now = 1000.0

    def _timed(self, config: Config) -> Outcome:
        outcome = self._timed_outcome(config)
        self.now += outcome.seconds
        return outcome

    def clock(self) -> float:
        """Seconds."""
        return self.now
