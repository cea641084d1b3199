"""A script that changes with time is held against a fresh start as soon as that shows."""

from __future__ import annotations

import threading
from collections.abc import Collection
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
    """No config is faster. With each trial the process that is kept alive comes down to ``share`` of its rate.

    Others disturb the runs of a look at it whose numbers are ``disturbed``; in ``slow`` ones the fresh start alone
    runs at half of its rate, once.
    """

    def __init__(
        self, share: float, *, looks_fail: bool = False, disturbed: Collection[int] = (), slow: Collection[int] = ()
    ) -> None:
        super().__init__(lambda config: 1.0, lambda request: 10.0)
        self._share, self._level, self._looks_fail = share, 1.0, looks_fail
        self._disturbed, self._slow = disturbed, slow
        self.taken = self.looks = 0

    def run_beside(self, request: TrialRequest, written: TrialRequest, stop: threading.Event, race: Race) -> ByTurns:
        outcome, self.taken = self.run(request, stop), self.taken + 1
        if self._looks_fail and not request.config:
            return ByTurns((replace(outcome, kind=OutcomeKind.CRASHED, measurement=None),))
        assert outcome.measurement is not None
        self._level *= self._share
        ratio, foreign = 1 / self._level, 0.0
        if not request.config:
            ratio, foreign = ratio / (2 if self.looks in self._slow else 1), 6.0 * (self.looks in self._disturbed)
            self.looks += 1
        beside = Reference(100.0 * self._level, Ratio(ratio, 0.98 * ratio, 1.02 * ratio), 12)
        measurement = replace(outcome.measurement, turns=12, reference=beside, foreign_cpus=foreign)
        return ByTurns((replace(outcome, measurement=measurement),))


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
        assert anchors == [3, 4], "two trials had come down to 0.64, and the first one alone to 0.8; and one look more"
        assert result.best is not None and result.best.config == BASELINE, "no config is faster by a fresh start"


@pytest.mark.parametrize("share", [0.93, 1.07], ids=["slower", "faster"])
def test_that_nothing_is_left_to_try_is_not_concluded_by_a_measure_that_has_changed(
    tmp_path: Path, share: float
) -> None:
    """By less than half, which a machine may do as well: a look, and a second one where a fresh start isn't as fast."""
    events: list[Event] = []
    plan = worlds.plan(tmp_path, selection=("workers", "precision"), trials=30, finals_rounds=3)
    result = run_study(plan, Ageing(share), StructuredSampler(), events.append, threading.Event())
    notes = [event.text for event in events if isinstance(event, Noted)]
    assert sum("with time" in text for text in notes) == 1, notes
    assert [trial.phase for trial in result.trials].count(Phase.ANCHOR) == 2
    assert result.best is not None and result.best.config == BASELINE


@pytest.mark.parametrize(
    ("disturbed", "slow", "looks", "ends"),
    [((), (), 2, True), ((0, 1), (), 3, True), ((1, 2), (), 3, True), (range(99), (), 3, False), ((), (0,), 2, False)],
    ids=["calm", "the first", "the second", "all", "one slow start"],
)
def test_that_it_changes_with_time_takes_two_looks_that_others_left_alone(
    tmp_path: Path, disturbed: Collection[int], slow: Collection[int], looks: int, *, ends: bool
) -> None:
    """One look ended all turns of a study, and put aside what had taken some: also one that others disturbed, or a
    start that was slow for once.
    """
    events: list[Event] = []
    plan = worlds.plan(tmp_path, selection=("workers", "precision"), trials=5, finals_rounds=3)
    runner = Ageing(0.995 if slow else 0.8, disturbed=disturbed, slow=slow)
    plan = replace(plan, anchor_every=1)
    result = run_study(plan, runner, StructuredSampler(), events.append, threading.Event())
    notes = [event.text for event in events if isinstance(event, Noted) and "with time" in event.text]
    assert bool(notes) is ends
    phases = [trial.phase for trial in result.trials if trial.phase in (Phase.SEARCH, Phase.ANCHOR)]
    first = phases.index(Phase.ANCHOR)
    assert phases[first : first + looks + 1] == [*[Phase.ANCHOR] * looks, Phase.SEARCH]


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
