"""A script that changes with time is held against a fresh start as soon as that shows."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.turning import Turning

from tuner.analysis.race import Race
from tuner.events import Event, Noted
from tuner.model import BASELINE, OutcomeKind, Phase, Ratio, Reference
from tuner.runner.request import ByTurns, TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study


class Ageing(Turning):
    """No config is faster. With each trial the process that is kept alive comes down to ``share`` of its rate."""

    def __init__(self, share: float, *, looks_fail: bool = False) -> None:
        super().__init__(lambda config: 1.0, lambda request: 10.0)
        self._share, self._level, self._looks_fail = share, 1.0, looks_fail
        self.taken = 0

    def run_beside(self, request: TrialRequest, written: TrialRequest, stop: threading.Event, race: Race) -> ByTurns:
        outcome, self.taken = self.run(request, stop), self.taken + 1
        if self._looks_fail and not request.config:
            return ByTurns((replace(outcome, kind=OutcomeKind.CRASHED, measurement=None),))
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


@pytest.mark.parametrize("share", [0.93, 1.07], ids=["slower", "faster"])
def test_that_nothing_is_left_to_try_is_not_concluded_by_a_measure_that_has_changed(
    tmp_path: Path, share: float
) -> None:
    """By less than half, which a machine may do as well: one look, and no more where a fresh start is as fast."""
    events: list[Event] = []
    plan = worlds.plan(tmp_path, selection=("workers", "precision"), trials=30, finals_rounds=3)
    result = run_study(plan, Ageing(share), StructuredSampler(), events.append, threading.Event())
    notes = [event.text for event in events if isinstance(event, Noted)]
    assert sum("with time" in text for text in notes) == 1, notes
    assert [trial.phase for trial in result.trials].count(Phase.ANCHOR) == 1
    assert result.best is not None and result.best.config == BASELINE


def test_a_look_that_fails_is_not_taken_for_ever(tmp_path: Path) -> None:
    plan = worlds.plan(tmp_path, selection=("workers", "precision"), trials=6, finals_rounds=3)
    runner = Ageing(0.8, looks_fail=True)
    result = run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event())
    phases = [trial.phase for trial in result.trials]
    assert phases.count(Phase.SEARCH) >= 5
    assert 1 <= phases.count(Phase.ANCHOR) <= 3


def test_a_study_that_is_resumed_takes_no_turns_either(tmp_path: Path) -> None:
    """Nothing but the record tells that they were ended."""
    changes: dict[str, Any] = {"selection": ("workers", "precision"), "finals_rounds": 3}
    for trials in (4, 6):
        runner, events = Ageing(0.8), list[Event]()
        plan = worlds.plan(tmp_path, trials=trials, **changes)
        result = run_study(plan, runner, StructuredSampler(), events.append, threading.Event())
        assert any(isinstance(event, Noted) and "it grows slower with time" in event.text for event in events)
    assert runner.taken == 0
    searched = [trial for trial in result.trials if trial.phase is Phase.SEARCH]
    assert len(searched) > 3 and all(t.measurement is not None and t.measurement.reference is None for t in searched)
