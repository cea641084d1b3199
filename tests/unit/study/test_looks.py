"""Finals that are resumed with more time again and again: all looks at them keep to the permitted error."""

from __future__ import annotations

import itertools
import math
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import worlds

from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.schedule import FIRST_LOOK
from tuner.analysis.stats import student_t_cdf
from tuner.model import Config, Outcome, Phase, Verdict
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study

RUN_S = 10.0
PERMITTED = 0.05 * 0.75


def session(folder: Path, budget_s: float, noise: Iterator[float]) -> StudyResult:
    """One process of a study in which bf16 is 2% faster; each run takes as long."""
    now = [0.0]

    def outcome(config: Config) -> Outcome:
        now[0] += RUN_S
        return worlds.measured(100.0 * (1.02 * math.exp(next(noise)) if config else 1.0))

    plan = worlds.plan(
        folder, trials=2, finalists=1, finals_rounds=5, budget_s=budget_s, selection=("precision",),
        accuracy=AccuracyLimits(max_loss_increase=None),
    )  # fmt: skip
    runner = ReplayRunner(outcome)
    return run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event(), clock=lambda: now[0])


def look_at(result: StudyResult) -> tuple[int, float]:
    """The rounds of the look that the study ended with, and how often the interval that it gave errs."""
    finals = [trial for trial in result.trials if trial.phase is Phase.FINALS and trial.measurement is not None]
    rates = {(trial.round, bool(trial.config)): trial.measurement.rate for trial in finals if trial.measurement}
    rounds = len(rates) // 2
    logs = [math.log(rates[number, True] / rates[number, False]) for number in range(1, rounds + 1)]
    assert result.winner is not None and result.winner.verdict is Verdict.KEEP_BASELINE
    ends = result.winner.speedup
    half = math.log(ends.high / ends.low) / 2
    return rounds, 2 * student_t_cdf(-half * math.sqrt(rounds) / statistics.stdev(logs), rounds - 1.0)


@pytest.mark.slow  # resumed once: test_finals.py
def test_finals_that_are_resumed_again_and_again_err_no_more_often_than_permitted(tmp_path: Path) -> None:
    """Five rounds, three more, and then each time that the command is given again there is time for one."""
    noise = itertools.cycle((0.1, -0.1))
    looks = dict([look_at(session(tmp_path, (2 + 2 * 8 + 1) * RUN_S, noise))])
    for _ in range(25):
        rounds, error = look_at(session(tmp_path, 2.5 * RUN_S, noise))
        looks[rounds] = error
    assert sorted(looks) == list(range(8, 28)), "until it has had them all"
    assert sum(looks.values()) <= (1 - FIRST_LOOK) * PERMITTED * (1 + 1e-9), "the first look has spent its share"
