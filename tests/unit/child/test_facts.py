"""What the child gathers of a script, and the record that is made of it."""

from __future__ import annotations

from dataclasses import fields

from tuner.child.clock import StepClock
from tuner.child.facts import ScriptFacts
from tuner.child.recorder import Recorder
from tuner.child.records import Facts, Window

GIVEN = {"suggested", "steps", "samples", "set_apart"}
ADDED_BY_THE_STUDY = {
    "placeholders", "effective_batch", "free_host_bytes", "allocators", "loop_s", "beside", "device_clean", "silences",
}  # fmt: skip


def clock(steps: int = 0, samples: float = 0.0) -> StepClock:
    counted = StepClock(Recorder(None), Window())
    counted.total_steps, counted.total_samples = steps, samples
    return counted


def test_what_can_be_known_of_a_script_is_gathered_by_the_child_or_added_by_the_study() -> None:
    gathered = {each.name for each in fields(ScriptFacts)}
    assert gathered | GIVEN | ADDED_BY_THE_STUDY == {each.name for each in fields(Facts)}


def test_each_fact_reaches_the_record() -> None:
    facts = ScriptFacts()
    knobs = {"as_written", "left_out"}
    for each in fields(ScriptFacts):
        setattr(facts, each.name, f"the {each.name}" if each.name not in knobs else {each.name: "a knob's"})
    record = facts.record(clock(3, 24.0), {})
    for each in fields(ScriptFacts):
        assert getattr(record, each.name) == getattr(facts, each.name)
    assert (record.steps, record.samples, record.suggested) == (3, 24.0, ())


def test_a_record_does_not_change_with_the_facts() -> None:
    facts = ScriptFacts()
    record = facts.record(clock(), {})
    facts.remark("seen later")
    assert record.remarks == ()


def test_a_knob_that_the_script_asks_for_is_never_left_out() -> None:
    facts = ScriptFacts(as_written={"batch_size": 16, "unknown": None}, left_out={"batch_size": "seen nowhere"})
    record = facts.record(clock(), {"batch_size": 32})
    assert record.as_written == {"batch_size": 32}
    assert record.left_out == {}
    assert record.suggested == ("batch_size",)
