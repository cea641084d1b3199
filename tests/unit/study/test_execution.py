"""A trial's outcome where its first run was disturbed and is done again."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds

from tuner.analysis.race import Race
from tuner.analysis.turns import FEW_TURNS
from tuner.child.records import Window
from tuner.child.unison import APART, RANKS_APART
from tuner.errors import InfrastructureError
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase, Ratio, Reference, Rotated, Trial
from tuner.report.trials import TrialsReport
from tuner.runner.ranks import PORT_TAKEN
from tuner.runner.request import ByTurns, Runner, TrialRequest
from tuner.study.budget import Budget
from tuner.study.execution import TrialExecutor
from tuner.study.lengths import SHORT_TURN_S, TORCH, WARMUP_S, turn_length_s, window_of
from tuner.study.study_time import StudyTime


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
    folder.mkdir(exist_ok=True)
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


KILLED = [
    Outcome(OutcomeKind.CRASHED, "signal-kill", "died of SIGKILL"),
    Outcome(OutcomeKind.CRASHED, "worker-killed", "a worker was killed"),
]


@pytest.mark.parametrize("killed", KILLED)
@pytest.mark.parametrize("config", [BASELINE, Config(workers=4)])
def test_what_was_killed_from_outside_is_run_again(tmp_path: Path, killed: Outcome, config: Config) -> None:
    outcome, run = kept(tmp_path, config, killed, worlds.measured(500))
    assert outcome.complete and run == "2" and outcome.again_after == killed.reason


def test_what_is_killed_twice_is_held_against_it(tmp_path: Path) -> None:
    """Something kills it each time, such as a guard against full memory that isn't the kernel's own."""
    again = replace(KILLED[1], again_after=KILLED[0].reason)
    assert kept(tmp_path, Config(workers=4), *KILLED) == (again, "2")


def test_that_one_was_killed_is_kept_where_it_is_measured_again_for_another_reason(tmp_path: Path) -> None:
    outcome, run = kept(tmp_path, Config(workers=4), KILLED[0], disturbed(500), worlds.measured(510))
    assert run == "3" and outcome.again_after == KILLED[0].reason


class ByTurnsInTurn(InTurn):
    """By turns as well, these outcomes, one run after the other."""

    takes_turns = True


def together(folder: Path, runner: ByTurnsInTurn, rounds: int = 1) -> tuple[TrialExecutor, list[Outcome]]:
    """Two trials by turns, where nothing speaks against them; the last round's outcomes."""
    executor = TrialExecutor(worlds.plan(folder), runner, stop=threading.Event(), note=lambda text: None)
    executor.obstacle = ""
    trials = [Trial(number, Phase.FINALS, Config({"workers": number}), round=1) for number in (1, 2)]
    for _ in range(rounds):
        outcomes = executor.execute_round(
            trials, Knowledge(), Window(), time_for=lambda seconds: True, together=True
        )  # fmt: skip
    return executor, outcomes


def test_what_is_killed_beside_another_takes_turns_again(tmp_path: Path) -> None:
    """In the first round already, before anything has shown that turns work."""
    runner = ByTurnsInTurn(worlds.measured(500), KILLED[0], worlds.measured(500), worlds.measured(510))
    executor, outcomes = together(tmp_path, runner)
    assert all(outcome.complete for outcome in outcomes) and not executor.obstacle and runner.ran == 4
    assert [outcome.again_after for outcome in outcomes] == ["", KILLED[0].reason], "of the one that was killed"


def test_what_is_killed_twice_beside_another_and_not_alone_is_told(tmp_path: Path) -> None:
    twice_beside = [worlds.measured(500), KILLED[0], worlds.measured(500), KILLED[0]]
    runner = ByTurnsInTurn(*twice_beside, worlds.measured(500), worlds.measured(510))
    executor, outcomes = together(tmp_path, runner)
    assert all(outcome.complete for outcome in outcomes) and executor.obstacle and runner.ran == 6
    assert [outcome.again_after for outcome in outcomes] == ["", KILLED[0].reason]


def test_what_the_devices_memory_is_too_small_for_beside_another_is_run_alone(tmp_path: Path) -> None:
    """Though turns were seen to work before: what the other one holds of a card is missing then."""
    beside = [worlds.measured(500), worlds.infeasible("device-oom")]
    runner = ByTurnsInTurn(*[worlds.measured(500)] * 2, *beside, worlds.measured(500), worlds.measured(510))
    executor, outcomes = together(tmp_path, runner, rounds=2)
    assert all(outcome.complete for outcome in outcomes) and not executor.obstacle and runner.ran == 6


@pytest.mark.parametrize("over", [True, False])
def test_what_takes_more_than_its_own_limit_beside_another_is_not_run_alone(tmp_path: Path, over: bool) -> None:
    """Its own processes were read to: what else is alive adds nothing to that, and it costs the study no time."""

    class Beside(ByTurnsInTurn):
        def run_beside(
            self, request: TrialRequest, written: TrialRequest, stop: threading.Event, race: Race
        ) -> ByTurns:
            outcome = self.run(request, stop)
            return ByTurns((replace(outcome, over_limit=10**9 if over and not outcome.complete else None),))

    fits = worlds.measured(500)
    assert fits.measurement is not None
    by_turns = replace(fits.measurement, turns=12, reference=Reference(100.0, Ratio(5.0, 4.9, 5.1), 12))
    runner = Beside(replace(fits, measurement=by_turns), worlds.infeasible("host-oom"), fits)
    executor = TrialExecutor(worlds.plan(tmp_path), runner, stop=threading.Event(), note=lambda text: None)
    executor.obstacle = ""
    trials = [Trial(number, Phase.SEARCH, Config({"workers": number})) for number in (1, 2)]
    shown, asked = [
        executor.execute(trial, Knowledge(), Window(), time_for=lambda seconds: True, race=Race()) for trial in trials
    ]
    assert shown.complete and asked.complete is not over
    assert runner.ran == (2 if over else 3) and not executor.obstacle


def test_a_trial_with_too_few_turns_says_why_it_is_run_again_by_itself(tmp_path: Path) -> None:
    """The first one's run was doubled without a word; the second one ends turns, and says so."""

    class Beside(ByTurnsInTurn):
        def run_beside(
            self, request: TrialRequest, written: TrialRequest, stop: threading.Event, race: Race
        ) -> ByTurns:
            return ByTurns((self.run(request, stop),))

    notes: list[str] = []
    runner = Beside(*[worlds.measured(500)] * 4)
    executor = TrialExecutor(worlds.plan(tmp_path), runner, stop=threading.Event(), note=notes.append)
    executor.obstacle = ""
    for number in (3, 4):
        trial = Trial(number, Phase.SEARCH, Config({"workers": number}))
        outcome = executor.execute(trial, Knowledge(), Window(), time_for=lambda seconds: True, race=Race())
        assert outcome.complete and outcome.detail == FEW_TURNS
        report = TrialsReport([replace(trial, outcome=outcome)], worlds.OBJECTIVE)
        assert f"trial {number}: {FEW_TURNS}" in report.footnotes()
    assert runner.ran == 4 and executor.obstacle
    assert notes[0] == f"trial 3: {FEW_TURNS}" and len(notes) == 2 and "too few turns" in notes[1]


@pytest.mark.parametrize(
    "apart", [worlds.infeasible(RANKS_APART), Outcome(OutcomeKind.NO_PROGRESS, "no-progress", "no step for 60 s")]
)
def test_several_ranks_that_wait_for_each_other_by_turns_only_are_not_to_blame(tmp_path: Path, apart: Outcome) -> None:
    """Though turns were seen to work before: ranks with unlike batches may come to it late."""
    runner = ByTurnsInTurn(*[worlds.measured(500)] * 2, worlds.measured(500), apart, *[worlds.measured(500)] * 2)
    plan = worlds.plan(tmp_path, ranks=2)
    executor = TrialExecutor(plan, runner, stop=threading.Event(), note=lambda text: None)
    executor.obstacle = ""
    trials = [Trial(number, Phase.FINALS, Config({"workers": number}), round=1) for number in (1, 2)]
    for obstacle in (False, True):
        outcomes = executor.execute_round(
            trials, Knowledge(), Window(), time_for=lambda seconds: True, together=True
        )  # fmt: skip
        assert all(outcome.complete for outcome in outcomes) and bool(executor.obstacle) is obstacle
    assert runner.ran == 6


def test_a_port_of_the_scripts_own_ends_turns(tmp_path: Path) -> None:
    """Else each trial is begun beside the one that holds the port, and again by itself. Later on another program's."""
    taken = Outcome(OutcomeKind.INFRASTRUCTURE, PORT_TAKEN, "rank 0: the port is taken")
    runner = ByTurnsInTurn(worlds.measured(500), taken, *[worlds.measured(500)] * 2)
    notes: list[str] = []
    executor = TrialExecutor(worlds.plan(tmp_path, ranks=2), runner, stop=threading.Event(), note=notes.append)
    executor.obstacle = ""
    trials = [Trial(number, Phase.FINALS, Config({"workers": number}), round=1) for number in (1, 2)]
    outcomes = executor.execute_round(
        trials, Knowledge(), Window(), time_for=lambda seconds: True, together=True
    )  # fmt: skip
    assert all(outcome.complete for outcome in outcomes)
    assert "rank 0: the port is taken" in executor.obstacle and "take no turns" in notes[-1]


def test_a_port_that_is_never_free_is_told_with_what_may_be_the_scripts_own_doing(tmp_path: Path) -> None:
    taken = Outcome(OutcomeKind.INFRASTRUCTURE, PORT_TAKEN, "rank 1: port: 23456, code: -98")
    with pytest.raises(InfrastructureError, match="port: 23456") as raised:
        kept(tmp_path, BASELINE, taken, taken, taken)
    assert raised.value.hint is not None and "RANK" in raised.value.hint


def test_ranks_that_come_apart_as_the_time_ends_are_unfinished_and_not_run_alone(tmp_path: Path) -> None:
    """There is no time for it, and what the other one was measured to be stays: nothing is either's own doing."""
    late = Outcome(OutcomeKind.UNFINISHED, "late", "the time for searching is used up")
    runner = ByTurnsInTurn(worlds.infeasible(RANKS_APART), late, worlds.measured(500))
    executor = TrialExecutor(worlds.plan(tmp_path, ranks=2), runner, stop=threading.Event(), note=lambda text: None)
    executor.obstacle = ""
    trials = [Trial(number, Phase.FINALS, Config({"workers": number}), round=1) for number in (1, 2, 3)]
    outcomes = executor.execute_round(
        trials, Knowledge(), Window(), time_for=lambda seconds: True, together=True
    )  # fmt: skip
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.UNFINISHED] * 2 + [OutcomeKind.COMPLETE]
    assert runner.ran == 3 and not executor.obstacle


def test_ranks_that_come_apart_in_a_rotation_take_no_turns_with_other_trials(tmp_path: Path) -> None:
    notes: list[str] = []
    runner = InTurn(worlds.infeasible(RANKS_APART))
    executor = TrialExecutor(worlds.plan(tmp_path, ranks=2), runner, stop=threading.Event(), note=notes.append)
    executor.obstacle = ""
    executor.execute(
        Trial(1, Phase.ROTATION, BASELINE), Knowledge(), Window(), time_for=lambda seconds: True,
        rotation=(Config(workers=4),),
    )  # fmt: skip
    assert executor.obstacle == APART and len(notes) == 1 and runner.ran == 1


def test_a_killed_rotation_keeps_what_it_has_measured(tmp_path: Path) -> None:
    """Trials of its configs decide. One that has measured nothing is run again."""
    measured = replace(KILLED[0], rotation=(Rotated(Config(workers=4), Ratio(1.2, 1.1, 1.3), 5),))
    runner = InTurn(KILLED[0], measured)
    executor = TrialExecutor(worlds.plan(tmp_path), runner, stop=threading.Event(), note=lambda text: None)
    trial, configs = Trial(1, Phase.ROTATION, BASELINE), (Config(workers=4),)
    outcome = executor.execute(trial, Knowledge(), Window(), time_for=lambda seconds: True, rotation=configs)
    assert outcome == replace(measured, again_after=KILLED[0].reason)
    assert runner.ran == 2
    once = InTurn(measured)
    executor = TrialExecutor(worlds.plan(tmp_path), once, stop=threading.Event(), note=lambda text: None)
    executor.execute(trial, Knowledge(), Window(), time_for=lambda seconds: True, rotation=configs)
    assert once.ran == 1


@pytest.mark.parametrize(("second_s", "ran"), [(10.0, 2), (1e6, 1)])
def test_a_rotation_that_others_disturbed_is_run_again_where_there_is_time(
    tmp_path: Path, second_s: float, ran: int
) -> None:
    """It would leave nothing out, and what it ranks first gets trials first."""
    rough = replace(disturbed(500), rotation=(Rotated(Config(workers=4), Ratio(0.7, 0.6, 0.8), 5),), seconds=second_s)
    calm = replace(worlds.measured(500), rotation=(Rotated(Config(workers=4), Ratio(1.2, 1.1, 1.3), 5),))
    runner = InTurn(rough, calm)
    executor = TrialExecutor(worlds.plan(tmp_path), runner, stop=threading.Event(), note=lambda text: None)
    outcome = executor.execute(
        Trial(1, Phase.ROTATION, BASELINE), Knowledge(), Window(), time_for=lambda seconds: True,
        ends_by=time.monotonic() + 100.0, rotation=(Config(workers=4),),
    )  # fmt: skip
    assert runner.ran == ran and outcome == (calm if ran == 2 else rough)


@pytest.mark.parametrize("config", [Config(compile="default"), Config(workers=4)], ids=str)
def test_a_rotation_that_compiles_begins_no_fork_server(tmp_path: Path, config: Config) -> None:
    """Its cache is its own, and trials that are forked share their server's: no other one of the study was forked."""
    asked: list[TrialRequest] = []

    class Noting(InTurn):
        def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
            asked.append(request)
            return super().run(request, stop)

    plan = worlds.plan(tmp_path)
    executor = TrialExecutor(plan, Noting(*[worlds.measured(500)] * 2), stop=threading.Event(), note=lambda text: None)
    for trial, turned in ((Trial(1, Phase.ROTATION, Config()), (config,)), (Trial(2, Phase.SEARCH, config), ())):
        executor.execute(trial, Knowledge(), Window(), time_for=lambda seconds: True, rotation=turned)
    rotation, search = asked
    assert rotation.fresh == (rotation.compile_cache != search.compile_cache) == ("compile" in config)
    assert not search.fresh


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


def test_the_script_as_written_is_warmed_up_beside_a_trial_for_as_long_as_that(tmp_path: Path) -> None:
    """It is held until the trial is there, and then both begin alike; its start is the study's time as well."""
    asked: list[Window] = []

    class Beside(ByTurnsInTurn):
        def run_beside(
            self, request: TrialRequest, written: TrialRequest, stop: threading.Event, race: Race
        ) -> ByTurns:
            asked.extend([request.window, written.window])
            return ByTurns((self.run(request, stop),))

    plan = worlds.plan(tmp_path)
    executor = TrialExecutor(plan, Beside(*[worlds.measured(500)] * 2), stop=threading.Event(), note=lambda text: None)
    executor.obstacle = ""
    trial = Trial(7, Phase.SEARCH, Config(workers=4))
    window, known = window_of(trial, plan, None, by_turns=True, turn_s=SHORT_TURN_S), Knowledge(framework=TORCH)
    assert executor.execute(trial, known, window, time_for=lambda seconds: True, race=Race()).complete
    assert asked[0].warmup_s == asked[1].warmup_s == WARMUP_S < plan.window.warmup_s
    assert asked[0].block_s == asked[1].block_s == SHORT_TURN_S < plan.window.block_s


def test_finals_by_short_turns_have_shorter_windows_so_that_there_are_more_rounds(tmp_path: Path) -> None:
    plan = worlds.plan(tmp_path)
    usual_s, trial = plan.window.block_s, Trial(7, Phase.FINALS, Config(workers=4))
    windows = [window_of(trial, plan, None, by_turns=True, turn_s=turn_s) for turn_s in (None, usual_s, SHORT_TURN_S)]
    assert windows[0].max_s == windows[1].max_s == 2 * windows[2].max_s
    search = replace(trial, phase=Phase.SEARCH)
    assert window_of(search, plan, None, by_turns=True, turn_s=SHORT_TURN_S).max_s == window_of(
        search, plan, None, by_turns=True
    ).max_s  # fmt: skip
    left_s = Budget(None, 10.0, 0.0)
    times = [StudyTime(plan, left_s, 0.0, [], None, True, turn_s) for turn_s in (usual_s, SHORT_TURN_S)]
    most_s = [10.0 + window.max_s for window in windows[1:]]
    assert [time.is_sure_to_fit(most) for time, most in zip(times, most_s, strict=True)] == [True, True]
    assert not times[1].is_sure_to_fit(most_s[0]), "half of its turns is less"


@pytest.mark.parametrize(("step_s", "longest_s"), [(0.002, 1.5), (0.1, 1.5), (0.16, 2.4), (0.4, 3.0), (5.0, 3.0)])
def test_windows_of_finals_are_no_shorter_than_fifteen_turns(tmp_path: Path, step_s: float, longest_s: float) -> None:
    """A turn holds a step at least: of three of 0.5 s no disturbed one can be left out."""
    plan, trial = worlds.plan(tmp_path), Trial(7, Phase.FINALS, Config(workers=4))
    window = window_of(trial, plan, None, by_turns=True, turn_s=SHORT_TURN_S, step_s=step_s)
    assert window.max_s == pytest.approx(longest_s)


def test_turns_are_short_where_nothing_is_made_beside_the_loop(tmp_path: Path) -> None:
    plan, alone = worlds.plan(tmp_path), Knowledge(framework=TORCH, as_written={"num_workers": 0})
    assert turn_length_s(plan, alone) == SHORT_TURN_S
    usual_s = plan.window.block_s
    assert turn_length_s(plan, alone, loads=True) == usual_s
    assert turn_length_s(plan, replace(alone, as_written={"num_workers": 2})) == usual_s
    assert turn_length_s(plan, replace(alone, wait_is_unseen=True)) == usual_s, "a thread fetches from the loader"
    assert turn_length_s(plan, replace(alone, wait_is_unseen=True, as_written={})) == SHORT_TURN_S, "there is no loader"
    assert turn_length_s(plan, replace(alone, framework="jax")) == usual_s
    card = replace(plan, device=replace(plan.device, kind="cuda"))
    assert turn_length_s(card, alone) == usual_s
    shorter = replace(plan, window=replace(plan.window, block_s=0.05))
    assert turn_length_s(shorter, alone) == 0.05
