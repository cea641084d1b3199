"""A gain is by the runs of the script as written before and after it: where one was disturbed, it is a rough one."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.clocked import Clocked

from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.bottleneck import Bound, bottleneck_of
from tuner.devices.present import host_of
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase, Side, Trial
from tuner.report.summary import summary
from tuner.report.trials import TrialsReport
from tuner.result import StudyResult
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study

HINT = "no more than a hint: the script as written was disturbed when it was measured: other processes used 6"


def study(
    folder: Path, disturbed: int, budget_s: float = 55.0, best: str = "bf16", *others: str, last: int | None = None,
    anchor_every: int = 1, late: int | None = None,
) -> StudyResult:  # fmt: skip
    """One in which no trials take turns, too short for finals; others have most cores in that run as written, or in all
    from that one to the ``last``. The ``late`` one runs out of time.
    """
    as_written = list[Config]()

    def outcome(config: Config) -> Outcome:
        if config:
            return worlds.measured(130.0 if config == {"precision": best} else 30.0)
        as_written.append(config)
        is_disturbed = disturbed <= len(as_written) - 1 <= (disturbed if last is None else last)
        run = worlds.measured(50.0 if is_disturbed else 100.0)
        assert run.measurement is not None
        run = replace(run, measurement=replace(run.measurement, foreign_cpus=6.0 if is_disturbed else 0.0))
        return replace(run, kind=OutcomeKind.TIMED_OUT) if len(as_written) - 1 == late else run

    plan = worlds.plan(
        folder, budget_s=budget_s, trials=None, selection=("precision", *others), anchor_every=anchor_every,
        accuracy=AccuracyLimits(max_loss_increase=None),
    )  # fmt: skip
    runner = Clocked(outcome)
    return run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event(), clock=runner.clock)


@pytest.mark.parametrize(("disturbed", "is_rough"), [(1, True), (2, False), (9, False)])
def test_the_runs_around_the_best_trial_are_looked_at(tmp_path: Path, disturbed: int, *, is_rough: bool) -> None:
    """Only the one before was: one after it that read half as fast made the best look a third faster."""
    result = study(tmp_path, disturbed)
    assert [trial.phase for trial in result.trials][:3] == [Phase.BASELINE, Phase.SEARCH, Phase.ANCHOR]
    assert result.best is not None and (result.best.number, result.winner) == (1, None)
    assert (HINT in summary(result, {}, "")) is is_rough, result.best_gain


@pytest.mark.parametrize(
    ("best", "disturbed", "is_rough"), [("bf16", 2, False), ("fp16", 0, False), ("fp16", 1, False), ("fp16", 2, True)]
)
def test_those_further_off_are_not(tmp_path: Path, best: str, disturbed: int, *, is_rough: bool) -> None:
    """Nor one that was measured again at once: the run after it stands in for it."""
    result = study(tmp_path, disturbed, 65.0, best, "layout")
    phases = [trial.phase for trial in result.trials]
    assert phases[:5] == [Phase.BASELINE, *(Phase.SEARCH, Phase.ANCHOR) * 2] and result.winner is None
    assert result.best is not None and result.best.config == {"precision": best}
    assert (HINT in summary(result, {}, "")) is is_rough, result.best_gain


def test_nothing_is_rough_where_nothing_but_the_script_as_written_was_measured(tmp_path: Path) -> None:
    result = study(tmp_path, 0, budget_s=15.0)
    assert result.best is not None and not result.best.config and result.roughness == ""


@pytest.mark.parametrize(
    ("disturbed", "last", "anchors"), [(0, 1, [2]), (0, 9, [2]), (9, 9, [])], ids=["twice", "always", "never"]
)
def test_one_that_was_disturbed_is_measured_again_before_more_is_held_against_it(
    tmp_path: Path, disturbed: int, last: int, anchors: list[int]
) -> None:
    """Of a script that ran at a fortieth of its rate beside others, all of the search was 20 times as fast: once more,
    and where that is no calmer, not again.
    """
    result = study(tmp_path, disturbed, 165.0, "bf16", "layout", "compile", last=last, anchor_every=8)
    assert [trial.number for trial in result.trials if trial.phase is Phase.ANCHOR] == anchors
    assert sum(trial.phase is Phase.SEARCH for trial in result.trials) >= 3
    # What came before that is held against the calm run alone: between the two it was 1.73 times as fast.
    first = TrialsReport(result.trials, result.objective).gain(result.trials[1])
    assert first == pytest.approx(2.6 if last == 9 > disturbed else 1.3)


@pytest.mark.parametrize(("anchor_every", "anchors", "gain"), [(8, [2], 2.6), (1, [2, 4], 1.3)])
def test_one_that_failed_measures_nothing_again(
    tmp_path: Path, anchor_every: int, anchors: list[int], gain: float
) -> None:
    """None is run for it alone, which may fail as well; the next one that is due takes the disturbed one's place."""
    result = study(tmp_path, 0, 165.0, "bf16", "layout", last=1, anchor_every=anchor_every, late=2)
    ran = [trial.number for trial in result.trials if trial.phase is Phase.ANCHOR]
    assert ran[:2] == anchors and not result.trials[2].measurement
    assert TrialsReport(result.trials, result.objective).gain(result.trials[1]) == pytest.approx(gain)


def test_what_binds_the_loop_is_told_by_the_run_that_took_the_disturbed_ones_place() -> None:
    """Computing alone is 44 times as fast as a loop that others disturbed, which doesn't wait for its data."""

    def run(number: int, phase: Phase, rate: float, foreign_cpus: float, **fields: Any) -> Trial:
        outcome = worlds.measured(rate)
        assert outcome.measurement is not None
        outcome = replace(outcome, measurement=replace(outcome.measurement, foreign_cpus=foreign_cpus))
        return Trial(number, phase, BASELINE, outcome=outcome, **fields)

    host = host_of(worlds.DEVICE, 8)
    trials = [run(0, Phase.BASELINE, 2.5, 6.0), run(1, Phase.PROBE, 110.0, 0.0, side=Side.COMPUTE)]
    disturbed = bottleneck_of(trials, host)
    assert disturbed is not None and (disturbed.bound, bool(disturbed.disturbed)) == (Bound.INPUT, True)
    calm = bottleneck_of([*trials, run(3, Phase.ANCHOR, 100.0, 0.0, group=(0,))], host)
    assert calm is not None and (calm.real, calm.bound, calm.disturbed) == (100.0, Bound.COMPUTE, "")
