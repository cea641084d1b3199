"""Which of the frameworks that a script imports is the one that trains."""

from __future__ import annotations

from support.in_process import session_of

from tuner.child.recorder import Recorder

WINDOW = {"block_s": 1.0, "warmup_s": 1.0, "warmup_steps": 1, "min_s": 1.0, "max_s": 9.0, "min_blocks": 3}


def test_the_first_framework_that_takes_a_step_is_the_one_that_trains() -> None:
    session = session_of({"window": WINDOW}, Recorder(None))
    assert session.may_be_of("torch")
    assert session.may_be_of("keras")
    session.step("keras")
    assert session.may_be_of("keras")
    assert not session.may_be_of("torch")


def test_steps_of_a_framework_that_does_not_train_count_for_nothing() -> None:
    session = session_of({"window": WINDOW}, Recorder(None))
    session.step("keras", 3)
    session.step("torch", 5)
    assert session.clock.total_steps == 3


def test_what_the_baseline_saw_training_trains_in_every_trial() -> None:
    session = session_of({"window": WINDOW, "knowledge": {"framework": "keras"}}, Recorder(None))
    assert not session.may_be_of("torch")
