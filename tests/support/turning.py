"""A made-up machine with a clock on which trials take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from support import worlds
from tuner.analysis.race import Race
from tuner.events import Event
from tuner.model import Config, Outcome, Ratio, Reference
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import ByTurns, TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study


class Turning(ReplayRunner):
    """Trials take turns. Each run takes as long as its outcome says, by what it is asked for.

    A gain by turns is told to ``known_to``, as a ratio of its ends to it.
    """

    takes_turns = True

    def __init__(
        self, gain_of: Callable[[Config], float], seconds_of: Callable[[TrialRequest], float], known_to: float = 1.02
    ) -> None:
        super().__init__(lambda config: worlds.measured(100.0 * gain_of(config), 0.3))
        self._gain_of, self._seconds_of, self._known_to = gain_of, seconds_of, known_to
        self.now = 0.0

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome = super().run(request, stop)
        seconds = self._seconds_of(request)
        self.now += seconds
        return replace(outcome, seconds=seconds)

    def run_by_turns(self, requests: Sequence[TrialRequest], stop: threading.Event) -> ByTurns:
        return ByTurns(tuple(self._turning(request, stop) for request in requests))

    def run_beside(self, request: TrialRequest, written: TrialRequest, stop: threading.Event, race: Race) -> ByTurns:
        return ByTurns((self._turning(request, stop),))

    def _turning(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome, gain = self.run(request, stop), self._gain_of(request.config)
        assert outcome.measurement is not None
        told = Ratio(gain, gain / self._known_to, gain * self._known_to)
        reference = Reference(100.0, told, 12) if request.config else None
        return replace(outcome, measurement=replace(outcome.measurement, turns=12, reference=reference))


def studied(
    folder: Path, gain_of: Callable[[Config], float], *, seconds_of: Callable[[TrialRequest], float],
    stop: threading.Event | None = None, known_to: float = 1.02, **changes: object,
) -> tuple[StudyResult, list[Event]]:
    """A study on that machine, of ``worlds.plan`` with these changes, and what it told."""
    runner, events = Turning(gain_of, seconds_of, known_to), list[Event]()
    plan = worlds.plan(folder, **{"selection": ("workers", "precision"), "finals_rounds": 5, "finalists": 1, **changes})
    result = run_study(
        plan, runner, StructuredSampler(), events.append, stop or threading.Event(), clock=lambda: runner.now
    )
    return result, events
