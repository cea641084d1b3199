"""What a script tells of itself by ``tuner.report``, as scripts do it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from support.in_process import ENDLESS, Log, session_of

from tuner.child.metrics import told_numbers
from tuner.child.reported import ReportedSteps


class _Odd:
    """As a tensor of several values, or one on a device that is lost."""

    def __float__(self) -> float:
        raise RuntimeError("only one value can be converted")


@pytest.mark.parametrize("value", [None, "high", [1, 2], {}, _Odd(), 10**400], ids=lambda value: type(value).__name__)
def test_what_is_no_number_is_passed_over_and_told_once(value: Any) -> None:
    """The script trains under plain Python, and so it does in a trial and in ``autotune run``."""
    remarks: list[str] = []
    for step in (1, 2):
        told = told_numbers({"step": step, "accuracy": value, "loss": 0.5}, remarks.append)
        assert told == {"step": step, "loss": 0.5}
    assert set(remarks) == {"tuner.report(accuracy=...) was given what is no number, which is passed over"}


def test_what_counts_is_finite_and_a_metric_need_not_be() -> None:
    remarks: list[str] = []
    told = told_numbers({"step": math.nan, "samples": math.inf, "loss": math.nan}, remarks.append)
    assert list(told) == ["loss"] and math.isnan(told["loss"])
    assert [text.partition(" was ")[0] for text in remarks] == ["tuner.report(step=...)", "tuner.report(samples=...)"]


def test_a_report_never_ends_the_script() -> None:
    log = Log()
    session = session_of({"mode": "trial", "window": ENDLESS, "folder": "", "device": "cpu"}, log)
    for step in range(1, 10):
        first_epoch: Any = {"step": step, "samples": 8 * step, "accuracy": None}
        session.report(first_epoch)
    session.finish(complete=False)
    facts = log.of("facts")[0]
    assert session.clock.total_steps == 9 and facts["unit"] == "samples"
    assert facts["remarks"] == ["tuner.report(accuracy=...) was given what is no number, which is passed over"]


def _totals(*told: tuple[int, float | None]) -> list[int]:
    steps = ReportedSteps()
    return [steps.total(step, samples) for step, samples in told]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("each", [1, 10])
def test_steps_that_begin_anew_in_each_epoch_go_on(first: int, each: int) -> None:
    numbers = [first + each * number for number in range(5)] * 3
    totals = _totals(*((step, 8.0 * at) for at, step in enumerate(numbers, 1)))
    assert totals == [first + each * number for number in range(15)]


@pytest.mark.parametrize(
    ("told", "totals"),
    [
        ([(1, None), (2, None), (1, None), (2, None), (3, None)], [1, 2, 2, 2, 3]),  # batches of a validation, maybe
        ([(1, 8), (2, 16), (1, None), (3, 24)], [1, 2, 2, 3]),  # the epoch's number, beside a metric
        ([(1, 8), (2, 16), (1, 16), (3, 24)], [1, 2, 2, 3]),
        ([(1, 8), (1, 16), (2, 24), (2, 32)], [1, 1, 2, 2]),  # several forward passes in a step
        ([(1000, 8000), (1001, 8008), (1, 8016), (2, 8024)], [1000, 1001, 1002, 1003]),  # resumed
    ],
)  # fmt: skip
def test_numbers_that_may_mean_something_else_count_no_epoch(
    told: Sequence[tuple[int, float | None]], totals: list[int]
) -> None:
    assert _totals(*told) == totals
