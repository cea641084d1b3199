"""What must hold of the statistics for every series."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.analysis.stats import (
    Noninferiority,
    mean_ratio_interval,
    non_inferior,
    pocock_level,
    rate_interval,
    steady_start,
    student_t_cdf,
    student_t_quantile,
    trend,
)

POSITIVE = st.floats(1e-6, 1e6)
SERIES = st.lists(POSITIVE, min_size=2, max_size=60)
PAIRS = st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=40)
SCALE = st.sampled_from([2.0**power for power in range(-12, 13)])
# No deadline an example anywhere: a shared machine stalls, and that is no fault of the code.


@given(PAIRS, SCALE)
def test_a_rate_lies_in_its_interval_and_scales_with_its_units(blocks: list[tuple[float, float]], scale: float) -> None:
    samples, seconds = [block[0] for block in blocks], [block[1] for block in blocks]
    interval = rate_interval(samples, seconds)
    assert 0 <= interval.low <= interval.estimate <= interval.high
    assert min(a / t for a, t in blocks) * (1 - 1e-9) <= interval.estimate <= max(a / t for a, t in blocks) * (1 + 1e-9)
    scaled = rate_interval([a * scale for a in samples], seconds)
    assert scaled.estimate == pytest.approx(interval.estimate * scale)
    assert scaled.low == pytest.approx(interval.low * scale)


@given(PAIRS)
def test_a_ratio_turned_round_is_its_inverse(runs: list[tuple[float, float]]) -> None:
    before, after = [run[0] for run in runs], [run[1] for run in runs]
    there, back = mean_ratio_interval(before, after), mean_ratio_interval(after, before)
    assert there.estimate * back.estimate == pytest.approx(1)
    if there.low > 0 and math.isfinite(back.high):
        assert there.low * back.high == pytest.approx(1)


@given(SERIES, SCALE)
def test_a_trend_has_no_units_and_reverses(values: list[float], scale: float) -> None:
    line, scaled, reverse = trend(values), trend([v * scale for v in values]), trend(values[::-1])
    assert 0 <= line.p_value <= 1
    assert scaled.slope == pytest.approx(line.slope, rel=1e-6, abs=1e-9)
    assert reverse.slope == pytest.approx(-line.slope, rel=1e-6, abs=1e-9)


@given(SERIES)
def test_a_steady_start_is_in_the_first_half(values: list[float]) -> None:
    assert 0 <= steady_start(values) <= len(values) // 2


@given(st.floats(1e-9, 1 - 1e-9), st.floats(0.5, 1e4))
def test_a_student_quantile_inverts_the_distribution(probability: float, degrees: float) -> None:
    value = student_t_quantile(probability, degrees)
    assert student_t_cdf(value, degrees) == pytest.approx(probability, rel=1e-6, abs=1e-12)


@given(st.floats(-50, 50), st.floats(-50, 50), st.floats(0.5, 1e4))
def test_a_student_distribution_rises(one: float, other: float, degrees: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= student_t_cdf(low, degrees) <= student_t_cdf(high, degrees) + 1e-12 <= 1 + 1e-11


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=10), st.floats(0, 5), st.floats(0, 5))
def test_a_wider_margin_never_turns_pass_into_less(differences: list[float], margin: float, more: float) -> None:
    if non_inferior(differences, margin) is Noninferiority.PASS:
        assert non_inferior(differences, margin + more) is Noninferiority.PASS
        assert sum(differences) / len(differences) <= margin + 1e-9


@settings(max_examples=25)  # each level takes a dozen integrals
@given(st.floats(0.001, 0.2), st.integers(2, 12))
def test_a_look_has_more_than_bonferronis_level(alpha: float, looks: int) -> None:
    assert alpha / looks <= pocock_level(alpha, looks) < alpha


