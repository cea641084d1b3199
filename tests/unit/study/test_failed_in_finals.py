"""What a study says, and does next, where runs of its finals fail."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support import overhead, worlds
from support.life_of_finals import groups, plan, run_of

from tuner.model import Config, Outcome, Phase, Verdict
from tuner.report.summary import summary
from tuner.result import StudyResult
from tuner.search.chain import Chain
from tuner.search.larger_batches import LargerBatchSampler
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study

GAINS = {Config(): 1.0, Config(precision="bf16"): 2.0, Config(precision="fp16"): 1.8}


def gains(config: Config) -> Outcome:
    return worlds.measured(100.0 * GAINS.get(config, 0.9))


@pytest.mark.parametrize(("fails", "said"), [
    (5, "not proven: the script as written failed in the finals"),
    (3, "keep your config: nothing tried was proven faster"),
])  # fmt: skip
def test_finals_in_which_the_script_as_written_fails_lack_no_time(tmp_path: Path, fails: int, said: str) -> None:
    """Five rounds were run, and the study had "no time left to prove it", or "only 2 rounds were run"."""
    left = [fails]

    def outcome(config: Config, in_finals: bool) -> Outcome:
        if in_finals and not config and left[0]:
            left[0] -= 1
            return worlds.infeasible("device-oom")
        return gains(config)

    result = run_of(replace(plan(tmp_path, 2), most_rounds=5), outcome)
    assert {trial.round for trial in result.trials if trial.phase is Phase.FINALS} == {1, 2, 3, 4, 5}
    assert summary(result, {}, "").splitlines()[0] == said
    if result.winner is not None:
        assert result.winner.label == "no proof: only 2 of 5 rounds have a figure of both"


def failing(config: Config, in_finals: bool) -> Outcome:
    """The fastest works in its trial, and runs out of memory in the finals."""
    if in_finals and config == {"precision": "bf16"}:
        return worlds.infeasible("device-oom")
    return gains(config)


def test_where_all_that_meet_fail_the_next_ones_have_the_time_that_is_left(tmp_path: Path) -> None:
    """The study ended with nothing proven, and the same command again had nothing left to run."""
    result = run_of(plan(tmp_path, 3), failing)
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    assert result.winner.config == {"precision": "fp16"}
    again = run_of(plan(tmp_path, 3), failing)
    assert (again.winner, again.trials) == (result.winner, result.trials)


def test_the_finals_of_the_next_one_go_on_where_they_were_stopped(tmp_path: Path) -> None:
    stop = threading.Event()

    def stopped(config: Config, in_finals: bool) -> Outcome:
        if in_finals and config == {"precision": "fp16"}:
            stop.set()
        return failing(config, in_finals)

    first = run_of(plan(tmp_path, 3), stopped, stop)
    assert first.interrupted and first.winner is None
    result = run_of(plan(tmp_path, 3), failing)
    assert len(groups(result.trials)) == 2
    assert result.winner is not None and result.winner.config == {"precision": "fp16"}


class OutOfMemoryInFinals(overhead.Runner):
    """Larger batches work in their trials and screens, and in no run that starts fresh."""

    def _outcome(self, config: Config) -> Outcome:
        outcome = super()._outcome(config)
        return worlds.infeasible("device-oom") if config and self.requests[-1].fresh else outcome


class OneOutOfMemory(overhead.Runner):
    """The larger batch that has its finals first runs out of memory there, and no other does."""

    too_large: Config | None = None

    def _outcome(self, config: Config) -> Outcome:
        outcome = super()._outcome(config)
        if config and self.requests[-1].fresh and self.too_large is None:
            self.too_large = config
        return worlds.infeasible("device-oom") if config and config == self.too_large else outcome


def test_where_a_larger_batch_fails_in_its_finals_the_next_one_has_the_time_that_is_left(tmp_path: Path) -> None:
    """The study ended there, "it has no figure in the finals", and the same command again proved the next one."""
    runner, sampler = OneOutOfMemory(overhead.Overhead()), Chain(LargerBatchSampler(), StructuredSampler())
    study = overhead.plan(tmp_path, selection=("batch_size",), trials=5)
    result = run_study(study, runner, sampler, lambda event: None, threading.Event(), clock=runner.clock)
    larger = result.larger
    assert runner.too_large is not None and larger is not None and larger.proven
    assert larger.config != runner.too_large
    assert len({screened.config for screened in result.screened}) == len(result.screened)
    before = len(runner.requests)
    again = run_study(study, runner, sampler, lambda event: None, threading.Event(), clock=runner.clock)
    assert len(runner.requests) == before and again.larger == larger


def test_a_larger_batch_that_fails_in_its_finals_is_not_told_to_be_no_faster(tmp_path: Path) -> None:
    """It was four times as fast as the script as written: "none was faster than the script as written"."""

    def once() -> StudyResult:
        runner, sampler = OutOfMemoryInFinals(overhead.Overhead()), Chain(LargerBatchSampler(), StructuredSampler())
        study = overhead.plan(tmp_path, selection=("batch_size",), trials=3)
        return run_study(study, runner, sampler, lambda event: None, threading.Event(), clock=runner.clock)

    result = once()
    assert result.larger is not None and result.larger.why == "it has no figure in the finals"
    for _ in range(4):
        result = once() if result.larger is not None else result
    assert result.larger is None and result.no_larger.endswith("failed in its finals")
    assert "batch_size" in result.no_larger
