"""A study that is resumed with a higher limit of memory: what exceeded the lower one is tried again, nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.ran import Ran, of

from tuner.events import Noted
from tuner.model import BASELINE, Config, Outcome, Phase, Trial
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study

LOW, HIGH = 2**30, 2**34


def takes_much(config: Config) -> Outcome:
    """A batch of 128 takes 2 GiB, and all others less than one."""
    outcome = worlds.World().outcome(config)
    if outcome.measurement is None or config.get("batch_size") != 128:
        return outcome
    return replace(outcome, measurement=replace(outcome.measurement, peak_host_bytes=2 * 2**30))


def takes_all(config: Config) -> Outcome:
    """The device has no memory for more than 64."""
    return worlds.World(fits=64).outcome(config)


def studied(
    folder: Path, limit: int | None, trials: int, world: Callable[[Config], Outcome] = takes_much
) -> Ran:  # fmt: skip
    plan = worlds.plan(folder, limits=Limits(max_host_bytes=limit), trials=trials, selection=("batch_size",))
    return Ran(plan, world)


def tried(ran: Ran, batch: int) -> list[Outcome]:
    return [
        trial.outcome for trial in ran.result.trials
        if trial.phase is Phase.SEARCH and trial.config == {"batch_size": batch} and trial.outcome is not None
    ]  # fmt: skip


@pytest.mark.parametrize("raised", [HIGH, None])
def test_what_exceeded_the_lower_limit_only_is_tried_again(tmp_path: Path, raised: int | None) -> None:
    [over] = tried(studied(tmp_path, LOW, 20), 128)
    assert (over.reason, over.over_limit) == ("host-oom", LOW)
    resumed = studied(tmp_path, raised, 40)
    assert [outcome.complete for outcome in tried(resumed, 128)] == [True]
    [told] = [note.text for note in of(resumed.events, Noted) if "limit of memory" in note.text]
    assert "when these trials exceeded it: " in told
    again = studied(tmp_path, raised, 40)
    assert not [note for note in of(again.events, Noted) if "limit of memory" in note.text], "they were tried again"


def test_what_the_device_itself_has_no_memory_for_stays_ruled_out(tmp_path: Path) -> None:
    [full] = tried(studied(tmp_path, LOW, 20, takes_all), 128)
    assert (full.reason, full.over_limit) == ("device-oom", None)
    resumed = studied(tmp_path, HIGH, 40, takes_all)
    assert tried(resumed, 128) == [full] and {"batch_size": 128} not in resumed.configs


@pytest.mark.parametrize("limit", [LOW, LOW // 2])
def test_with_no_higher_limit_nothing_is_tried_again(tmp_path: Path, limit: int) -> None:
    [over] = tried(studied(tmp_path, LOW, 20), 128)
    resumed = studied(tmp_path, limit, 40)
    assert tried(resumed, 128) == [over] and {"batch_size": 128} not in resumed.configs


class Growing(ReplayRunner):
    """A machine on which longer runs of one config take more than the lower limit: in screens, or in the finals."""

    def __init__(self, config: Config, phase: Phase, limit: int) -> None:
        super().__init__(worlds.World().outcome)
        self._config, self._phase, self._limit = config, phase, limit

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome = super().run(request, stop)
        before = [each for each in self.requests[:-1] if each.config == request.config and each.seed is None]
        phase = Phase.SCREEN if request.seed is not None else Phase.FINALS if before else Phase.SEARCH
        if self._limit > LOW or request.config != self._config or phase is not self._phase:
            return outcome
        return replace(worlds.infeasible("host-oom"), over_limit=LOW)

    def study(self, folder: Path, *selection: str) -> StudyResult:
        plan = worlds.plan(folder, limits=Limits(max_host_bytes=self._limit), trials=6, selection=selection)
        return run_study(plan, self, StructuredSampler(), lambda event: None, threading.Event())


def test_a_screen_in_which_the_script_as_written_took_too_much_is_made_again(tmp_path: Path) -> None:
    def screened(limit: int) -> list[Trial]:
        result = Growing(BASELINE, Phase.SCREEN, limit).study(tmp_path, "workers", "precision")
        return [trial for trial in result.trials if trial.phase is Phase.SCREEN and not trial.config]

    assert [trial.outcome.over_limit for trial in screened(LOW) if trial.outcome is not None] == [LOW]
    again = screened(HIGH)
    assert len(again) == 3 and all(trial.measurement is not None for trial in again)


@pytest.mark.parametrize("config", [Config(workers=8), BASELINE])
def test_no_round_of_the_finals_is_filled_up_by_a_run_of_another_time(tmp_path: Path, config: Config) -> None:
    """Held against runs of days before it was told as interleaved with them, and proven."""
    first = Growing(config, Phase.FINALS, LOW).study(tmp_path, "workers")
    failed = [trial for trial in first.trials if trial.outcome is not None and trial.outcome.over_limit]
    assert failed and all(trial.phase is Phase.FINALS for trial in failed)
    resumed = Growing(config, Phase.FINALS, HIGH)
    again = resumed.study(tmp_path, "workers")
    assert not resumed.requests and again.winner == first.winner
