"""Which of the frameworks that a script imports is the one that trains."""

from __future__ import annotations

import numpy as np
from support.in_process import Log, session_of

from tuner.child import wire
from tuner.child.recorder import Recorder
from tuner.child.records import Facts

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


def test_what_the_script_reports_stays_as_it_gave_it() -> None:
    log = Log()
    session = session_of({"window": WINDOW}, log)
    metrics = {"accuracy": 0.5, "step": 3, "samples": 24}
    session.report(metrics)
    assert metrics == {"accuracy": 0.5, "step": 3, "samples": 24}
    assert [(r["name"], r["value"]) for r in log.of("metric")] == [("accuracy", 0.5)]
    assert (session.clock.total_steps, session.clock.total_samples) == (3, 24)


def test_whatever_a_script_writes_can_be_read_by_the_parent() -> None:
    """A record that can't be read is lost, and with it all that is known of the script."""
    log = Log()
    session = session_of({"window": WINDOW}, log)
    session.facts.as_written.update(
        batch_size=np.int64(32), lr_scale=np.float32(0.5), precision=("bf", 16), prefetch=None, cache=np.bool_(True)
    )
    session.suggest("width", [64, 32])
    session.finish(complete=False)
    (facts,) = log.of("facts")
    assert facts["as_written"] == {
        "batch_size": 32, "lr_scale": 0.5, "precision": "('bf', 16)", "cache": True, "width": "[64, 32]"
    }  # fmt: skip
    (entry,) = wire.decode([wire.encode(session.facts.record(steps=0, samples=0.0, suggestions={}), 0.0)])
    assert isinstance(entry.record, Facts)
