"""A study whose time was over before it tried anything says with which budget it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support import worlds
from support.clocked import Clocked

from tuner.model import Config, Outcome, OutcomeKind, Phase, Verdict
from tuner.report.summary import summary
from tuner.result import StudyResult
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study


def faster(config: Config) -> Outcome:
    """bf16 is twice as fast; each run takes ten seconds."""
    return worlds.measured(200.0 if "precision" in config else 100.0)


def crashes(config: Config) -> Outcome:
    """Nothing but the script as written works, and what doesn't takes long."""
    return Outcome(OutcomeKind.CRASHED, "crash", "boom", seconds=100.0) if config else worlds.measured(100.0)


def study(
    folder: Path, budget_s: float, trials: int | None = None, outcome_of: Callable[[Config], Outcome] = faster
) -> StudyResult:
    runner = Clocked(outcome_of)
    plan = worlds.plan(folder, budget_s=budget_s, trials=trials)
    return run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event(), clock=runner.clock)


def goes_on(result: StudyResult) -> list[str]:
    return [line for line in summary(result, {}, "").splitlines() if line.startswith("go on")]


def test_with_the_budget_that_is_told_a_config_is_tried_and_proven(tmp_path: Path) -> None:
    short = study(tmp_path, 15.0)
    assert [trial.phase for trial in short.trials] == [Phase.BASELINE]
    assert summary(short, {}, "").startswith("no result: nothing but the script as written was measured")
    assert short.untried_budget_s is not None
    (line,) = goes_on(short)
    assert f"the same command with --budget {short.untried_budget_s / 60:.0f}m, to try a config" in line
    longer = study(tmp_path, short.untried_budget_s)
    assert longer.winner is not None and longer.winner.verdict is Verdict.IMPROVED
    assert longer.untried_budget_s is None and not goes_on(longer)


@pytest.mark.parametrize(("budget_s", "trials"), [(1000.0, 1), (1000.0, 2), (45.0, None)])
def test_nothing_is_told_where_time_was_not_lacking_or_something_was_tried(
    tmp_path: Path, budget_s: float, trials: int | None
) -> None:
    result = study(tmp_path, budget_s, trials)
    assert result.untried_budget_s is None
    assert not [line for line in goes_on(result) if "to try" in line]


@pytest.mark.parametrize("budget_s", [400.0, 900.0, 1200.0])
def test_no_budget_is_told_where_what_was_tried_has_failed(tmp_path: Path, budget_s: float) -> None:
    """With the one that was told nothing more was tried: eight had failed, or all that was worth it."""
    result = study(tmp_path, budget_s, outcome_of=crashes)
    assert result.winner is None and any(trial.phase is Phase.SEARCH for trial in result.trials)
    assert result.untried_budget_s is None and not goes_on(result)
