"""A trial's outcome where its first run was disturbed and is done again."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds

from tuner.child.records import Window
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase, Trial
from tuner.runner.request import Runner, TrialRequest
from tuner.study.execution import TrialExecutor


def disturbed(rate: float) -> Outcome:
    """Beside more foreign load than is allowed."""
    outcome = worlds.measured(rate)
    assert outcome.measurement is not None
    return replace(outcome, measurement=replace(outcome.measurement, foreign_cpus=1.5))


class InTurn(Runner):
    """A runner that gives these outcomes, one after the other, and leaves each run's number in its folder."""

    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes = list(outcomes)
        self.ran = 0

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        request.folder.mkdir(parents=True, exist_ok=True)
        self.ran += 1
        (request.folder / "run").write_text(str(self.ran))
        return self._outcomes[self.ran - 1]


def kept(folder: Path, config: Config, *outcomes: Outcome) -> tuple[Outcome, str]:
    """The outcome that counts, and which run's records are in the trial's folder."""
    runner = InTurn(*outcomes)
    executor = TrialExecutor(worlds.plan(folder), runner, stop=threading.Event(), note=lambda text: None)
    trial = Trial(7, Phase.FINALS, config, round=1, group=(3,))
    outcome = executor.execute(trial, Knowledge(), Window(), time_for=lambda seconds: True)
    assert runner.ran == len(outcomes)
    return outcome, executor.request_of(trial, Knowledge(), Window()).folder.joinpath("run").read_text()


def test_the_calmer_run_counts(tmp_path: Path) -> None:
    assert kept(tmp_path / "a", Config(workers=4), disturbed(500), worlds.measured(510))[1] == "2"
    worse = disturbed(400)
    assert worse.measurement is not None
    worse = replace(worse, measurement=replace(worse.measurement, foreign_cpus=6.0))
    assert kept(tmp_path / "b", Config(workers=4), disturbed(500), worse)[1] == "1"


@pytest.mark.parametrize(
    "failed",
    [worlds.infeasible("device-oom"), Outcome(OutcomeKind.CRASHED, "signal-9"), Outcome(OutcomeKind.TIMED_OUT, "late")],
)
def test_a_config_that_fails_the_second_time_has_failed(tmp_path: Path, failed: Outcome) -> None:
    assert kept(tmp_path, Config(workers=4), disturbed(500), failed) == (failed, "2")


def test_the_script_as_written_keeps_its_first_run(tmp_path: Path) -> None:
    """What the script itself does now and then is held against no config."""
    outcome, run = kept(tmp_path, BASELINE, disturbed(500), worlds.infeasible("host-oom"))
    assert outcome.complete and run == "1"


class Compiling(InTurn):
    """What is compiled comes out of the cache that the request names, once it lies there."""

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome = super().run(request, stop)
        assert outcome.measurement is not None and request.compile_cache is not None
        cache = "warm" if request.compile_cache.exists() else "cold"
        request.compile_cache.mkdir(parents=True, exist_ok=True)
        return replace(outcome, measurement=replace(outcome.measurement, compile_cache=cache))


def test_a_cold_start_that_was_disturbed_is_measured_again(tmp_path: Path) -> None:
    """The repeat finds as little compiled as the first run did; later trials find what that made."""
    runner = Compiling(disturbed(500), worlds.measured(510), disturbed(500), worlds.measured(510))
    executor = TrialExecutor(worlds.plan(tmp_path), runner, stop=threading.Event(), note=lambda text: None)
    caches = []
    for number in (1, 2):
        trial = Trial(number, Phase.SEARCH, Config(compile="default"))
        outcome = executor.execute(trial, Knowledge(), Window(), time_for=lambda seconds: True)
        assert outcome.measurement is not None and outcome.measurement.rate == 510
        caches.append(outcome.measurement.compile_cache)
    assert caches == ["cold", "warm"]
    assert sorted(path.name for path in (tmp_path / "trials").iterdir()) == [
        "0001", "0001.disturbed", "0002", "0002.disturbed",
    ]  # fmt: skip
