"""A script that waits for a process of its own until its time is up: that is told, as far as it is known."""

from __future__ import annotations

import pytest

from tuner.child.records import FirstStep, FrameworkSeen, Hello, ProcessesAwaited, Record
from tuner.runner.classify import EndedBy, Traces, classify

SEEN: list[Record] = [Hello(1, "3.11.0", "/usr/bin/python"), FrameworkSeen("torch", "2", "cpu")]
DETAIL = "not through after 120 s: no training step was seen by then, at line 19 of train.py"


def reason(*records: Record) -> tuple[str, str]:
    """Of a script as written that was ended by its time limit."""
    return classify(Traces([*SEEN, *records], True, ended_by=EndedBy.DEADLINE, ended_detail=DETAIL))[1:]


def test_a_wait_for_a_process_that_may_train_is_told() -> None:
    """It was advised to report its steps, which another process takes."""
    waits = "the script waits for a process that it started (train), and no training step was seen in its own"
    assert reason(ProcessesAwaited("train")) == ("processes-awaited", f"not through after 120 s: {waits}")


def test_a_wait_for_a_process_whose_cores_others_had_is_told_as_that() -> None:
    """As any other trial that was crowded out it says nothing of its config, whose value was taken to fail."""
    detail = "no step for 30 s; others had 1.6 cores that it wanted meanwhile"
    crowded = Traces([*SEEN, ProcessesAwaited("prepare")], False, ended_by=EndedBy.CROWDED_OUT, ended_detail=detail)
    assert classify(crowded)[1:] == ("crowded-out", detail)


@pytest.mark.parametrize("after", [ProcessesAwaited(""), FirstStep(1.0)])
def test_a_wait_that_is_over_explains_nothing(after: Record) -> None:
    assert reason(ProcessesAwaited("prepare"), after)[0] != "processes-awaited"
