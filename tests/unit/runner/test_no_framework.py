"""A script whose time is up before it has used anything that autotune knows."""

from __future__ import annotations

from tuner.child.records import FirstStep, FrameworkSeen, Hello, Record
from tuner.model import OutcomeKind
from tuner.runner.classify import EndedBy, Traces, classify

HELLO = Hello(1, "3.11", "python")
DETAIL = "not through after 120 s: still in its start-up, at train.py, line 9"


def judged(*records: Record, by: EndedBy = EndedBy.DEADLINE) -> tuple[OutcomeKind, str, str]:
    """What a baseline with these records is that its time limit, or a silence, ended."""
    return classify(Traces(records, True, ended_by=by, ended_detail=DETAIL))


def test_more_time_is_not_all_that_is_told() -> None:
    """Whoever trains with scikit-learn or XGBoost would wait in vain for a step, whatever the time limit."""
    named = f"{DETAIL}; until then its process used none of PyTorch, TensorFlow, Keras and JAX"
    assert judged(HELLO) == (OutcomeKind.TIMED_OUT, "no-framework", named)


def test_with_a_framework_or_a_step_of_its_own_it_may_only_be_slow() -> None:
    known: list[list[Record]] = [[HELLO, FrameworkSeen("torch", "2.9.0", "cpu")], [HELLO, FirstStep(1.0, 0.0)], []]
    for records in known:
        assert judged(*records) == (OutcomeKind.TIMED_OUT, "deadline", DETAIL)


def test_what_waits_for_something_is_told_that() -> None:
    assert judged(HELLO, by=EndedBy.NO_PROGRESS)[1:] == ("no-progress", DETAIL)
