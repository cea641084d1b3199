"""How long a trial may say nothing: by what it is at, its time limit, and what the script as written did."""

from __future__ import annotations

import pytest

from tuner.child.records import Block, FirstStep, Hello, Phase, Record, TrainingPause
from tuner.child.watch import Pause, Silences
from tuner.runner.request import Limits
from tuner.runner.silence import IDLE_S, START_UP_S, Course, Idleness, Stage, longest_silence_s, stall
from tuner.runner.tree import Usage

LIMITS = Limits(trial_timeout_s=1800.0, no_progress_s=450.0)
UNKNOWN = Silences()
KNOWN = Silences(start_up_s=200.0, training_s=1.0, validation_s=150.0)
BLOCK = Block(Phase.WINDOW, 1, 1.0, 1.0, 0.0)


def course(*records: tuple[float, Record]) -> Course:
    made = Course(0.0)
    for at, record in records:
        made.see(record, at)
    return made


def test_a_trial_is_at_what_its_records_say() -> None:
    trial = course((1.0, Hello(1, "3", "python")))
    stages = [trial.stage]
    assert trial.where() == ": no training step was seen by then"
    records: list[Record] = [
        FirstStep(2.0), TrainingPause(Pause.VALIDATION, begins=True), TrainingPause(Pause.COMPILATION, begins=True),
        TrainingPause(Pause.COMPILATION, begins=False), TrainingPause(Pause.VALIDATION, begins=False),
    ]  # fmt: skip
    for at, record in enumerate(records, 2):
        trial.see(record, float(at))
        stages.append(trial.stage)
    training, validation = Stage.TRAINING, Stage.VALIDATION
    assert stages == [Stage.START_UP, training, validation, Stage.COMPILATION, validation, training]
    assert trial.where() == ": 2 s until its first step"


def test_the_longest_silences_are_kept_by_what_they_were() -> None:
    trial = course(
        (30.0, Hello(1, "3", "python")), (70.0, FirstStep(70.0)), (71.0, BLOCK), (73.0, BLOCK),
        (74.0, TrainingPause(Pause.VALIDATION, begins=True)), (90.0, TrainingPause(Pause.VALIDATION, begins=False)),
        (91.0, TrainingPause(Pause.COMPILATION, begins=True)), (97.0, TrainingPause(Pause.COMPILATION, begins=False)),
    )  # fmt: skip
    assert trial.silences == Silences(40.0, 2.0, 16.0, 6.0)


@pytest.mark.parametrize(
    ("stage", "baseline", "seconds"),
    [
        (Stage.START_UP, UNKNOWN, 1800.0), (Stage.VALIDATION, UNKNOWN, 1800.0), (Stage.COMPILATION, UNKNOWN, 1800.0),
        (Stage.TRAINING, UNKNOWN, 1800.0), (Stage.START_UP, KNOWN, 900.0), (Stage.VALIDATION, KNOWN, 600.0),
        (Stage.COMPILATION, KNOWN, 1800.0), (Stage.TRAINING, KNOWN, 450.0),
        (Stage.START_UP, Silences(start_up_s=300.0), 1200.0), (Stage.TRAINING, Silences(training_s=200.0), 800.0),
    ],
)  # fmt: skip
def test_limits_follow_the_baseline_and_the_trials_own_limit(stage: Stage, baseline: Silences, seconds: float) -> None:
    assert longest_silence_s(stage, LIMITS, baseline, UNKNOWN) == seconds


def test_a_short_trial_may_start_up_for_all_its_time() -> None:
    assert Limits().trial_timeout_s == START_UP_S
    assert longest_silence_s(Stage.START_UP, Limits(), Silences(start_up_s=2.0), UNKNOWN) == START_UP_S


def test_a_step_may_take_as_long_as_the_first_one_did() -> None:
    """XLA compiles it anew for a batch of another shape, and says nothing."""
    trial = course((70.0, Hello(1, "3", "python")), (700.0, FirstStep(700.0)), (701.0, BLOCK))
    assert stall(trial, LIMITS, KNOWN, 701.0 + 600.0, None) == ""
    assert stall(trial, LIMITS, KNOWN, 701.0 + 640.0, None) == "no step for 630 s"


def test_the_script_as_written_may_compute_for_all_its_time_between_two_steps() -> None:
    """An agent that plays well plays for a minute and more before it trains again."""
    trial = course((1.0, Hello(1, "3", "python")), (2.0, FirstStep(2.0)), (3.0, BLOCK))
    assert stall(trial, Limits(), UNKNOWN, 3.0 + 100.0, 0.5) == ""
    assert stall(trial, Limits(), UNKNOWN, 3.0 + 130.0, 0.5) == "no step for 120 s"
    assert stall(trial, Limits(), UNKNOWN, 3.0 + 100.0, 59.0) == ""
    assert "no step for 61 s, and its processes use no CPU" in stall(trial, Limits(), UNKNOWN, 3.0 + 61.0, 61.0)
    assert stall(trial, Limits(), KNOWN, 3.0 + 100.0, 0.5) == "no step for 60 s"


def test_what_waits_without_computing_is_told_from_what_computes() -> None:
    trial = course((1.0, Hello(1, "3", "python")))
    now = 1.0 + IDLE_S + 1.0
    assert stall(trial, LIMITS, UNKNOWN, now, None) == "", "a device may be computing"
    assert stall(trial, LIMITS, UNKNOWN, now, 5.0) == "", "the host is"
    assert "use no CPU time" in stall(trial, LIMITS, UNKNOWN, now, IDLE_S + 0.5)
    assert stall(trial, LIMITS, UNKNOWN, 1900.0, 5.0) == "no first step for 1800 s"


def test_a_process_is_idle_from_its_last_worthwhile_computing_on() -> None:
    idle = Idleness()

    def usage(t: float, cpu_s: float) -> Usage:
        return Usage(t, 0, None, cpu_s, 0.0, 0.0, 1)

    readings = [(0.0, 1.0), (10.0, 5.0), (20.0, 5.01), (30.0, 5.02), (40.0, 6.0), (50.0, 0.5), (60.0, 0.5)]
    assert [idle.see(usage(t, cpu_s)) for t, cpu_s in readings] == [0.0, 0.0, 10.0, 20.0, 0.0, 0.0, 10.0]
