"""Requested against observed: what a difference means depends on who set the knob."""

from __future__ import annotations

import pytest
from support.in_process import Log

from tuner.child.evidence import ITS_OWN, Finding, SetBy, compare, inapplicable, number_format
from tuner.child.knobs import Knobs
from tuner.child.records import Evidence, Value
from tuner.child.tensorflow.data import plans


@pytest.mark.parametrize(
    ("observed", "set_by", "evidence"),
    [
        (64, SetBy.PATCH, "verified"), (64, SetBy.OPTION, "verified"), (64, SetBy.ARGUMENT, "verified"),
        (32, SetBy.PATCH, "contradicted"), (32, SetBy.OPTION, "contradicted"), (32, SetBy.ARGUMENT, "unverifiable"),
        (None, SetBy.PATCH, "contradicted"), (None, SetBy.ARGUMENT, "unverifiable"),
    ],
)  # fmt: skip
def test_a_difference_proves_nothing_of_an_argument(observed: object, set_by: SetBy, evidence: str) -> None:
    assert compare(64, observed, set_by).evidence == evidence


def test_a_bound_knob_is_never_said_to_act_on_nothing() -> None:
    assert inapplicable("no layer computes", SetBy.PATCH) == Finding(
        Evidence.NOT_APPLICABLE, "no layer computes", changed=0, of_value=False
    )
    assert inapplicable("no layer computes", SetBy.ARGUMENT) == Finding(
        Evidence.UNVERIFIABLE, f"no layer computes; {ITS_OWN}", changed=0
    )


def test_what_is_not_applicable_is_so_of_the_value_or_of_all() -> None:
    """One call of a map at once is what TensorFlow makes by itself: of two calls that says nothing."""
    as_written: plans.Plan = [(0, "ParallelMapV2", 1, 2)]
    other = plans.judge("parallel_calls", 2, [(0, "ParallelMapV2", 2, 2)], as_written)
    assert (other.evidence, other.of_value) == (Evidence.VERIFIED, None)
    same = plans.judge("parallel_calls", 1, as_written, as_written)
    assert (same.evidence, same.of_value, same.observed) == (Evidence.NOT_APPLICABLE, True, "ParallelMapV2 1")
    assert inapplicable("no dataset", SetBy.PATCH).of_value is False
    knobs, log = _knobs({"parallel_calls": 1})
    knobs.report("parallel_calls", same)
    assert [report["of_value"] for report in log.of("knob")] == [True]


def test_reasons_say_what_is_known() -> None:
    assert compare(64, 32, SetBy.PATCH).reason == "observed 32: something in the script set it back"
    assert compare(64, 32, SetBy.OPTION).reason == "observed 32: the option was set back, or had been read before"
    assert compare(64, 32, SetBy.PATCH, why="the batches are ready-made").reason == "the batches are ready-made"
    assert compare(64, 64, SetBy.OPTION, sites=3) == Finding(
        Evidence.VERIFIED, "by an option of the script or of its trainer", 64, 0, 0
    )


def test_what_is_observed_can_be_sent_whatever_it_is() -> None:
    assert compare(64, ("a", 1), SetBy.PATCH).observed == "('a', 1)"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("bf16", "bfloat16"), ("mixed_bfloat16", "bfloat16"), ("16-mixed", "float16"), (16, "float16"),
        ("torch.half", "float16"), ("32-true", "float32"), ("no", "float32"), ("tf32", "float32"), ("int8", ""),
    ],
)  # fmt: skip
def test_scripts_have_words_of_their_own_for_number_formats(word: object, name: str) -> None:
    assert number_format(word) == name


def _knobs(requested: dict[str, Value], arguments: tuple[str, ...] = (), *, early: bool = False) -> tuple[Knobs, Log]:
    log = Log()
    return Knobs(log, requested, arguments, lambda: early), log


def test_each_knob_is_applied_by_one() -> None:
    knobs, _ = _knobs({"batch_size": 8, "precision": "bf16", "threads": 2}, ("threads",))
    delegated: list[str] = []
    knobs.on_delegation(delegated.append)
    knobs.delegate("precision")
    knobs.delegate("precision")
    assert delegated == ["precision"]
    assert [knobs.set_by(k) for k in ("batch_size", "precision", "threads")] == ["patch", "option", "argument"]
    assert [knobs.wanted(k) for k in ("batch_size", "precision", "threads", "compile")] == [8, None, None, None]


def test_a_value_that_the_script_keeps_is_not_fought() -> None:
    knobs, log = _knobs({"precision": "bf16"})
    knobs.keep_script_value("precision", "the trainer is told")
    knobs.compare("precision", "fp32")
    (report,) = log.of("knob")
    assert (report["evidence"], report["sites_changed"]) == ("not applicable", 0)
    assert (report["reason"], report["of_value"]) == ("the trainer is told", False)


def test_a_script_that_ended_early_contradicts_nothing() -> None:
    knobs, log = _knobs({"batch_size": 8}, early=True)
    knobs.compare("batch_size", 0)
    assert [r["evidence"] for r in log.of("knob")] == ["unverifiable"]


def test_what_was_not_asked_for_is_not_reported() -> None:
    knobs, log = _knobs({})
    knobs.inapplicable("batch_size", "no loader")
    assert log.records == []


def test_a_look_that_fails_costs_no_other_and_leaves_a_mark() -> None:
    """A knob of which nothing was reported went for one that took effect."""
    knobs, log = _knobs({"precision": "bf16", "threads": 2, "workers": 4, "batch_size": 8}, ("batch_size",))
    notes: list[str] = []

    def fails() -> None:
        raise AttributeError("no dtype")

    looks = (lambda: knobs.compare("workers", 4), fails, lambda: knobs.compare("threads", 2))
    knobs.look(looks, notes.append)
    assert notes == ["observation failed: AttributeError: no dtype"]
    assert {report["knob"]: report["evidence"] for report in log.of("knob")} == {
        "workers": "verified", "threads": "verified", "precision": "unverifiable",
    }  # fmt: skip
