"""Verdicts of screens on made-up losses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import worlds

from tuner.accuracy import AccuracyLimits, Pair, judge, metrics_in
from tuner.model import Outcome
from tuner.stats import Verdict


def learned(*losses: float) -> Outcome:
    """A run whose losses are spread evenly over its samples."""
    outcome = worlds.measured(100.0)
    assert outcome.measurement is not None
    steps = tuple((64.0 * (number + 1), loss) for number, loss in enumerate(losses))
    return replace(outcome, measurement=replace(outcome.measurement, losses=steps))


def pairs(*late: tuple[float, float]) -> list[Pair]:
    """Pairs with these losses in the second half, and in the first a baseline that learns no more."""
    return [
        Pair(seed, learned(*[before] * 6, before, before), learned(*[50.0] * 3, *[after] * 5))
        for seed, (before, after) in enumerate(late, start=1)
    ]


LIMITS = AccuracyLimits(max_loss_increase=0.01)


def test_equal_losses_pass() -> None:
    result = judge({}, pairs((1.0, 1.001), (1.1, 1.1), (0.9, 0.9005)), LIMITS, 256)
    assert result.verdict is Verdict.PASS
    assert result.checks[0].high < 0.01
    assert result.checks[0].baseline == pytest.approx(1.0)


def test_a_clearly_higher_loss_fails() -> None:
    result = judge({}, pairs((1.0, 1.05), (1.1, 1.16), (0.9, 0.946)), LIMITS, 256)
    assert result.verdict is Verdict.FAIL
    assert result.checks[0].low > 0.01


def test_not_significant_is_not_no_harm() -> None:
    result = judge({}, pairs((1.0, 1.1), (1.1, 1.0), (0.9, 0.95)), LIMITS, 256)
    assert result.verdict is Verdict.INCONCLUSIVE


def test_a_lower_loss_passes() -> None:
    assert judge({}, pairs((1.0, 0.7), (1.1, 0.75), (0.9, 0.66)), LIMITS, 256).verdict is Verdict.PASS


def test_negative_losses_are_compared_by_their_size() -> None:
    assert judge({}, pairs((-1.0, -1.0), (-1.1, -1.1), (-0.9, -0.9)), LIMITS, 256).verdict is Verdict.PASS
    assert judge({}, pairs((-1.0, -0.9), (-1.1, -0.99), (-0.9, -0.81)), LIMITS, 256).verdict is Verdict.FAIL


def test_a_run_that_failed_fails_with_its_reason() -> None:
    failed = [*pairs((1.0, 1.0)), Pair(2, learned(1.0, 1.0), worlds.infeasible("nan"))]
    result = judge({"precision": "fp16"}, failed, LIMITS, 256)
    assert result.verdict is Verdict.FAIL
    assert "made-up nan" in result.reason


def test_a_baseline_that_failed_shows_nothing() -> None:
    failed = [Pair(1, worlds.infeasible("host-oom"), learned(1.0, 1.0))]
    assert judge({}, failed, LIMITS, 256).verdict is Verdict.INCONCLUSIVE


def test_no_losses_show_nothing() -> None:
    blind = [Pair(seed, learned(), learned()) for seed in (1, 2, 3)]
    result = judge({}, blind, LIMITS, 256)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert math.isnan(result.checks[0].worse)


def test_a_metric_may_not_drop() -> None:
    limits = AccuracyLimits(max_loss_increase=None, max_metric_drop={"accuracy": 0.02})

    def with_accuracy(*values: tuple[float, float]) -> list[Pair]:
        return [
            Pair(seed, learned(1.0), learned(1.0), {"accuracy": before}, {"accuracy": after})
            for seed, (before, after) in enumerate(values, start=1)
        ]

    assert judge({}, with_accuracy((0.9, 0.9), (0.91, 0.909), (0.9, 0.901)), limits, 1).verdict is Verdict.PASS
    assert judge({}, with_accuracy((0.9, 0.8), (0.91, 0.81), (0.9, 0.8)), limits, 1).verdict is Verdict.FAIL
    unseen = [Pair(1, learned(1.0), learned(1.0), {"accuracy": 0.9}, {})]
    assert judge({}, unseen, limits, 1).verdict is Verdict.INCONCLUSIVE


def test_the_worst_figure_decides() -> None:
    limits = AccuracyLimits(max_loss_increase=0.01, max_metric_drop={"accuracy": 0.01})
    mixed = [replace(p, baseline_metrics={"accuracy": 0.9}, candidate_metrics={"accuracy": 0.7}) for p in pairs(
        (1.0, 1.0), (1.1, 1.1), (0.9, 0.9)
    )]  # fmt: skip
    result = judge({}, mixed, limits, 256)
    assert [check.verdict for check in result.checks] == [Verdict.PASS, Verdict.FAIL]
    assert result.verdict is Verdict.FAIL


def test_patterns_find_the_last_value() -> None:
    text = "epoch 1 acc=0.81 (81%)\nepoch 2 acc=0.93\nacc=n/a\n"
    assert metrics_in(text, {"accuracy": r"acc=(\S+)"}) == {"accuracy": 0.93}
    assert metrics_in(text, {"epoch": r"(?<=epoch )\d+"}) == {"epoch": 2.0}
    assert metrics_in(text, {"loss": r"loss=(\S+)"}) == {}


def test_a_loss_that_has_come_far_is_held_against_its_way() -> None:
    """From 2.3 to 0.01: that it is 0.012 with another format says nothing."""
    came_down = [2.3] * 5 + [0.5] * 3
    far = [
        Pair(seed, learned(*came_down, *[0.010] * 8), learned(*came_down, *[0.010 + more] * 8))
        for seed, more in ((1, 0.002), (2, 0.004), (3, -0.001))
    ]
    assert judge({}, far, LIMITS, 1024).verdict is Verdict.PASS
    worse = [
        Pair(seed, learned(*came_down, *[0.010] * 8), learned(*came_down, *[0.110 + more] * 8))
        for seed, more in ((1, 0.002), (2, 0.004), (3, -0.001))
    ]
    assert judge({}, worse, LIMITS, 1024).verdict is Verdict.FAIL
