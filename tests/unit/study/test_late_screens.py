"""Screens that take longer than they were foreseen to: they end with the study's time, and go on with more of it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.ran import of
from support.turning import Turning

from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import Event, Noted
from tuner.model import Config, Outcome, OutcomeKind, Phase, Verdict
from tuner.report.summary import summary
from tuner.result import StudyResult
from tuner.runner.request import ByTurns, TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study

BF16, LIMITS = Config(precision="bf16"), AccuracyLimits(samples=600)


class SlowScreens(Turning):
    """bf16 is twice as fast, and two workers a fifth faster. Runs of screens take ``screen_s``; what isn't through by
    the moment that it was asked for is ended then.
    """

    def __init__(self, screen_s: float) -> None:
        super().__init__(gain_of, lambda request: screen_s if request.seed is not None else self.trial_s)
        self.screens: list[TrialRequest] = []
        self.trial_s = 8.0

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """A run, or as much of it as there is time for."""
        began, left_s = self.now, max(0.0, request.ends_by - time.monotonic())
        outcome = super().run(request, stop)
        if request.seed is not None:
            self.screens.append(request)
        if outcome.seconds <= left_s:
            return outcome
        self.now = began + left_s
        return Outcome(OutcomeKind.UNFINISHED, "out-of-time", "the study had no more time for it", seconds=left_s)

    def run_by_turns(self, requests: Sequence[TrialRequest], stop: threading.Event) -> ByTurns:
        """A round, whose runs take no longer than they were foreseen to."""
        self.trial_s = 6.0
        return ByTurns(tuple(self._turning(replace(request, ends_by=math.inf), stop) for request in requests))


def gain_of(config: Config) -> float:
    return (2.0 if config.get("precision") == "bf16" else 1.0) * (1.2 if config.get("workers") == 2 else 1.0)


class Reporting(SlowScreens):
    """Of a loop that only tells where its steps end: no loss is seen, and no framework."""

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome = super().run(request, stop)
        without = replace(outcome.measurement, losses=()) if outcome.measurement is not None else None
        return replace(outcome, measurement=without)


def studied(
    folder: Path, screen_s: float, budget_s: float, *names: str, machine: type[SlowScreens] = SlowScreens,
    accuracy: AccuracyLimits = LIMITS,
) -> tuple[StudyResult, SlowScreens, list[Event]]:
    runner, events = machine(screen_s), list[Event]()
    plan = worlds.plan(
        folder, selection=names or ("precision",), budget_s=budget_s, finals_rounds=5, finalists=1, trials=6,
        accuracy=accuracy,
    )  # fmt: skip
    result = run_study(
        plan, runner, StructuredSampler(), events.append, threading.Event(), clock=lambda: runner.now
    )
    return result, runner, events


@pytest.mark.parametrize("screen_s", [60.0, 150.0, 10_000.0])
def test_a_screen_ends_with_the_time_of_the_study(tmp_path: Path, screen_s: float) -> None:
    """A run that took 10,000 s was waited for to its end: only between runs was it asked whether there was time."""
    result, runner, events = studied(tmp_path, screen_s, 300.0)
    assert runner.screens and result.seconds <= 300.0 + 1.0
    assert next(note.text for note in of(events, Noted)).startswith("no time left to compare how precision=")
    assert all(trial.outcome is not None and trial.outcome.complete for trial in result.trials)
    assert result.lacked_time is not None and "precision" in result.lacked_time.config


def test_what_needs_no_screen_is_proven_in_the_time_that_such_a_screen_leaves(tmp_path: Path) -> None:
    result, runner, _ = studied(tmp_path, 10_000.0, 300.0, "workers", "precision")
    assert runner.screens and result.seconds <= 300.0 + 1.0
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    assert result.winner.config == {"workers": 2}


def test_a_screen_that_was_ended_goes_on_with_more_time_where_it_was(tmp_path: Path) -> None:
    first, runner, _ = studied(tmp_path, 10_000.0, 300.0)
    ended = runner.screens[-1]
    again, runner, _ = studied(tmp_path, 60.0, 3000.0)
    assert again.winner is not None and (again.winner.verdict, again.winner.config) == (Verdict.IMPROVED, BF16)
    assert [request.folder for request in runner.screens].count(ended.folder) == 1
    done = {(t.config, t.seed) for t in first.trials if t.phase is Phase.SCREEN}
    assert done.isdisjoint((request.config, request.seed) for request in runner.screens), "nothing is run twice"
    screens = [(t.config, t.seed) for t in again.trials if t.phase is Phase.SCREEN]
    assert len(screens) == len(set(screens))


@pytest.mark.parametrize(
    "limits", [LIMITS, replace(LIMITS, max_loss_increase=None, efficiency_alone=True)], ids=["both", "efficiency"]
)
def test_a_loop_that_shows_no_loss_is_promised_no_proof_by_more_time(tmp_path: Path, limits: AccuracyLimits) -> None:
    """With the budget that was named its screen found no loss, and nothing was proven."""
    result, _, events = studied(tmp_path, 10_000.0, 300.0, machine=Reporting, accuracy=limits)
    assert result.best is not None and result.best.config == BF16
    assert result.lacked_time is None and not any("with --budget" in note.text for note in of(events, Noted))
    assert summary(result, {}, "").startswith("not proven: a screen can't tell how it learns")
    told = studied(tmp_path / "told", 10_000.0, 300.0)[0]
    assert told.lacked_time is not None and summary(told, {}, "").startswith("not proven: no time left to")
