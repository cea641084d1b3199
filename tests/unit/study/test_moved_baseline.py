"""A script that changes with time is held against a fresh start as soon as that shows."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.turning import Turning

from tuner.analysis.race import Race
from tuner.events import Event, Noted
from tuner.model import BASELINE, Phase, Ratio, Reference
from tuner.runner.request import ByTurns, TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study


class Ageing(Turning):
    """No config is faster. With each trial the process that is kept alive comes down to ``share`` of its rate."""

    def __init__(self, share: float) -> None:
        super().__init__(lambda config: 1.0, lambda request: 10.0)
        self._share, self._level = share, 1.0

    def run_beside(self, request: TrialRequest, written: TrialRequest, stop: threading.Event, race: Race) -> ByTurns:
        outcome = self.run(request, stop)
        assert outcome.measurement is not None
        self._level *= self._share
        told = Ratio(1 / self._level, 0.98 / self._level, 1.02 / self._level)
        beside = Reference(100.0 * self._level, told, 12)
        return ByTurns((replace(outcome, measurement=replace(outcome.measurement, turns=12, reference=beside)),))


@pytest.mark.parametrize(("share", "ends"), [(0.8, True), (0.98, False)])
def test_one_that_has_come_down_by_half_is_held_against_a_fresh_start(
    tmp_path: Path, share: float, *, ends: bool
) -> None:
    """Each later trial would look faster than the one before it, whatever its config."""
    events: list[Event] = []
    plan = worlds.plan(tmp_path, selection=("workers", "precision"), trials=6, finals_rounds=3)
    result = run_study(plan, Ageing(share), StructuredSampler(), events.append, threading.Event())
    notes = [event.text for event in events if isinstance(event, Noted)]
    ended = [text for text in notes if "it grows slower with time" in text]
    anchors = [trial.number for trial in result.trials if trial.phase is Phase.ANCHOR]
    assert bool(ended) is bool(anchors) is ends
    if ends:
        assert anchors == [3], "two trials had come down to 0.64, and the first one alone to 0.8"
        assert result.best is not None and result.best.config == BASELINE, "no config is faster by a fresh start"
