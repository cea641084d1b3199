"""A script whose time is up before it has used anything that autotune knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.child.records import FirstStep, FrameworkSeen, Hello, Record
from tuner.knowledge import Knowledge
from tuner.model import Outcome, OutcomeKind
from tuner.runner.classify import EndedBy, Traces, classify
from tuner.study.baseline import baseline_error

HELLO = Hello(1, "3.11", "python")
DETAIL = "not through after 120 s: no training step was seen by then, at train.py, line 9"


def judged(*records: Record, by: EndedBy = EndedBy.DEADLINE) -> tuple[OutcomeKind, str, str]:
    """What a baseline with these records is that its time limit, or a silence, ended."""
    return classify(Traces(records, True, ended_by=by, ended_detail=DETAIL))


def test_more_time_is_not_all_that_is_told() -> None:
    """Whoever trains with scikit-learn or XGBoost would wait in vain for a step, whatever the time limit."""
    named = f"{DETAIL}; until then its process used none of PyTorch, TensorFlow, Keras and JAX"
    assert judged(HELLO) == (OutcomeKind.TIMED_OUT, "no-framework", named)


def test_with_a_step_of_its_own_it_may_only_be_slow() -> None:
    known: list[list[Record]] = [[HELLO, FirstStep(1.0, 0.0)], []]
    for records in known:
        assert judged(*records) == (OutcomeKind.TIMED_OUT, "deadline", DETAIL)


def test_with_a_framework_it_is_slow_or_trains_unseen() -> None:
    """A loop without gradients of its framework's was told that it hadn't begun, and to take more time."""
    reason = judged(HELLO, FrameworkSeen("torch", "2.9.0", "cpu"))[1]
    assert reason == "no-step-in-time"
    error = baseline_error(Outcome(OutcomeKind.TIMED_OUT, reason, DETAIL), Path("trials/0000"))
    assert error.hint is not None and "--trial-timeout" in error.hint and "tuner.report" in error.hint


def test_a_script_that_fails_without_a_word_is_told_so() -> None:
    """It read "ended with status 3:", as if something were missing."""
    assert classify(Traces([HELLO], True, status=3 << 8))[2] == "the script ended with status 3, and printed nothing"


@pytest.mark.parametrize("code", [0, 1])
def test_a_script_that_ends_by_itself_is_told_so_first(code: int) -> None:
    """It may have said why: tuner.report is no help to who lacks a card."""
    records: list[Record] = [HELLO, FrameworkSeen("torch", "2.9.0", "cpu")]
    kind, reason, detail = classify(Traces(records, True, status=code << 8, log="2 gpus required, exiting\n"))
    assert kind is OutcomeKind.USER_ERROR and f"with status {code}" in detail
    assert "2 gpus required, exiting" in detail
    hint = baseline_error(Outcome(kind, reason, detail), Path("trials/0000")).hint
    assert hint is not None and ("log.txt" in hint if code else "why it ended" in hint)


def test_what_waits_for_something_is_told_that() -> None:
    assert judged(HELLO, by=EndedBy.NO_PROGRESS)[1:] == ("no-progress", DETAIL)


def test_what_was_wrong_with_the_scripts_own_reports_is_part_of_the_hint() -> None:
    remarks = ("tuner.report(step=...) was given nan, which counts nothing", "the loader is slow")
    knowledge = Knowledge(remarks=remarks)
    outcome = Outcome(OutcomeKind.USER_ERROR, "ended-early", DETAIL, knowledge=knowledge)
    hint = baseline_error(outcome, Path("trials/0000")).hint
    assert hint.endswith(f"; {remarks[0]}")
