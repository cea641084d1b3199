"""The statistics against published tables, closed forms and edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tuner.analysis.stats import (
    Interval,
    Noninferiority,
    is_steady,
    mean_ratio_interval,
    non_inferior,
    pocock_level,
    rate_interval,
    steady_start,
    student_t_cdf,
    student_t_quantile,
    trend,
)


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [  # NIST/SEMATECH e-Handbook, table 1.3.6.7.2
        (0.90, 1, 3.078), (0.95, 1, 6.314), (0.975, 1, 12.706), (0.99, 1, 31.821), (0.999, 1, 318.309),
        (0.95, 2, 2.920), (0.975, 2, 4.303), (0.999, 2, 22.327), (0.975, 3, 3.182), (0.95, 4, 2.132),
        (0.975, 4, 2.776), (0.975, 5, 2.571), (0.975, 9, 2.262), (0.99, 10, 2.764), (0.975, 20, 2.086),
        (0.975, 30, 2.042), (0.999, 30, 3.385), (0.975, 100, 1.984), (0.975, 1e6, 1.960),
    ],
)  # fmt: skip
def test_student_quantiles_are_the_published_ones(probability: float, degrees: float, expected: float) -> None:
    assert student_t_quantile(probability, degrees) == pytest.approx(expected, abs=6e-4)
    assert student_t_quantile(1 - probability, degrees) == pytest.approx(-expected, abs=6e-4)


def test_student_has_closed_forms_at_one_and_two_degrees() -> None:
    for x in (-1e9, -30.0, -1.0, -1e-9, 0.0, 0.5, 7.0, 1e9, math.inf):
        assert student_t_cdf(x, 1) == pytest.approx(0.5 + math.atan(x) / math.pi, abs=1e-12)
        two = (1 + (x / math.sqrt(2 + x * x) if abs(x) < 1e100 else 1)) / 2
        assert student_t_cdf(x, 2) == pytest.approx(two, abs=1e-12)
    assert student_t_quantile(1e-6, 1) == pytest.approx(math.tan(math.pi * (1e-6 - 0.5)), rel=1e-9)
    assert student_t_quantile(0.5, 7.3) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 3), (1.0, 3), (math.nan, 3), (0.5, 0), (0.5, -1)])
def test_student_refuses_what_has_no_quantile(probability: float, degrees: float) -> None:
    with pytest.raises(ValueError):
        student_t_quantile(probability, degrees)


@pytest.mark.parametrize(
    ("alpha", "looks", "expected"),
    [  # Jennison and Turnbull, Group Sequential Methods (2000), table 2.1: 2 (1 - Phi(C_P))
        (0.05, 1, 0.05), (0.05, 2, 0.0294), (0.05, 3, 0.0221), (0.05, 4, 0.0182), (0.05, 5, 0.0158),
        (0.05, 10, 0.0106), (0.05, 20, 0.0075), (0.01, 5, 0.0028),
    ],
)  # fmt: skip
def test_pocock_levels_are_the_published_ones(alpha: float, looks: int, expected: float) -> None:
    assert pocock_level(alpha, looks) == pytest.approx(expected, abs=6e-5)


def test_a_rate_is_all_samples_over_all_seconds() -> None:
    interval = rate_interval([10, 20, 30], [1, 1, 2])
    assert interval.estimate == 15
    assert interval.low < 15 < interval.high
    assert interval.low * interval.high == pytest.approx(15**2)


def test_identical_blocks_leave_no_doubt_and_few_blocks_bound_nothing() -> None:
    assert rate_interval([8] * 12, [2.0] * 12).relative_half_width < 1e-12
    assert rate_interval([8], [2.0]) == Interval(4.0, 0.0, math.inf)
    assert rate_interval([0, 0, 0], [1, 2, 3]) == Interval(0.0, 0.0, math.inf)
    assert Interval(0.0, 0.0, math.inf).relative_half_width == math.inf


def test_blocks_of_different_lengths_in_time_are_not_noise() -> None:
    seconds = [1.0, 2.0, 3.0, 1.5, 0.5] * 4
    assert rate_interval([100 * s for s in seconds], seconds).relative_half_width < 1e-9


def test_autocorrelation_widens_and_confidence_widens() -> None:
    noise = np.random.default_rng(1).normal(1, 0.05, 40)
    shuffled, slow = rate_interval([1] * 40, list(noise)), rate_interval([1] * 40, sorted(noise))
    assert slow.relative_half_width > 2 * shuffled.relative_half_width
    strict = rate_interval([1] * 40, list(noise), confidence=0.99)
    assert strict.low < shuffled.low < shuffled.high < strict.high


@pytest.mark.parametrize(
    ("samples", "seconds"),
    [([], []), ([1, 2], [1]), ([1, -1], [1, 1]), ([1, 1], [1, 0]), ([1, math.nan], [1, 1]), ([1, 1], [1, math.inf])],
)
def test_blocks_that_cannot_be_are_refused(samples: list[float], seconds: list[float]) -> None:
    with pytest.raises(ValueError):
        rate_interval(samples, seconds)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, math.nan])
def test_a_confidence_is_a_fraction(confidence: float) -> None:
    with pytest.raises(ValueError):
        rate_interval([1, 2], [1, 1], confidence)
    with pytest.raises(ValueError):
        mean_ratio_interval([1, 2], [1, 1], confidence)
    with pytest.raises(ValueError):
        non_inferior([0.1], 1, confidence)


def test_a_ratio_of_three_pairs_is_the_paired_t_interval() -> None:
    gains = np.array([1.10, 1.12, 1.17])
    before = np.array([100.0, 50.0, 80.0])
    interval = mean_ratio_interval(list(before), list(before * gains))
    logs = np.log(gains)
    half = 4.302653 * logs.std(ddof=1) / math.sqrt(3)
    assert math.log(interval.estimate) == pytest.approx(logs.mean())
    assert math.log(interval.low) == pytest.approx(logs.mean() - half)
    assert math.log(interval.high) == pytest.approx(logs.mean() + half)


def test_a_ratio_of_unequal_counts_is_welchs() -> None:
    before, after = np.array([100.0, 101, 99, 100]), np.array([120.0, 110, 130])
    interval = mean_ratio_interval(list(before), list(after))
    parts = [np.log(rates).var(ddof=1) / len(rates) for rates in (before, after)]
    degrees = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    half = student_t_quantile(0.975, degrees) * math.sqrt(sum(parts))
    assert math.log(interval.high / interval.estimate) == pytest.approx(half)
    assert mean_ratio_interval([2, 2], [3, 3, 3]).relative_half_width == 0
    assert mean_ratio_interval([2], [3, 3, 3]).high == math.inf
    with pytest.raises(ValueError):
        mean_ratio_interval([2, 0], [3, 3])


def test_a_trend_is_told_from_noise() -> None:
    noise = np.random.default_rng(2).normal(0, 1, 40)
    rising = trend(list(100 + 0.5 * np.arange(40) + noise))
    assert rising.slope == pytest.approx(0.5 / 109.75, rel=0.1)
    assert rising.p_value < 1e-6
    assert trend(list(100 + noise)).p_value > 0.05
    assert not is_steady(list(100 + 0.5 * np.arange(40) + noise))
    assert is_steady(list(100 + noise))


def test_a_trend_too_small_to_matter_is_steady_and_a_perfect_line_is_certain() -> None:
    line = [100 + 0.01 * i for i in range(40)]
    assert trend(line).p_value == 0
    assert is_steady(line)
    assert not is_steady(line, tolerance=0.001)
    assert trend([5.0] * 9).p_value == 1
    assert trend([5.0]) == trend([7.0])
    assert trend([1.0, 2.0, 3.0]).p_value == 1
    with pytest.raises(ValueError):
        trend([])


def test_warm_up_is_found_where_it_ends() -> None:
    noise = np.random.default_rng(3).normal(0, 1, 100)
    level = np.where(np.arange(100) < 20, 60, 100)
    assert 20 <= steady_start(list(level + noise)) <= 24
    assert steady_start([3.0] * 20) == 0
    assert steady_start([1.0, 2.0]) == 0
    assert steady_start([float(i) for i in range(40)]) == 20
    with pytest.raises(ValueError):
        steady_start([])


def test_a_series_that_settles_is_not_steady_and_one_that_settles_by_little_is() -> None:
    noise = np.random.default_rng(5).normal(0, 0.5, 40)
    warm = 25 * np.exp(-np.arange(40) / 2)
    assert is_steady(list(100 - warm + noise)[10:])
    assert not is_steady(list(100 - warm + noise))
    assert is_steady(list(100 - warm / 5 + noise))
    assert not is_steady([50.0] * 10 + [100.0] * 30)


@pytest.mark.parametrize(
    ("differences", "margin", "verdict"),
    [
        ([0.0, 0.0, 0.0], 0.0, Noninferiority.PASS),
        ([0.01, 0.012, 0.008], 0.05, Noninferiority.PASS),
        ([-1.0, -1.1, -0.9], 0.0, Noninferiority.PASS),
        ([0.2, 0.21, 0.19], 0.05, Noninferiority.FAIL),
        ([0.04, 0.06, 0.05], 0.05, Noninferiority.INCONCLUSIVE),
        ([0.0, 0.1, -0.1], 0.05, Noninferiority.INCONCLUSIVE),
        ([0.0], 0.05, Noninferiority.INCONCLUSIVE),
        ([], 0.05, Noninferiority.INCONCLUSIVE),
        ([0.0, math.nan, 0.0], 0.05, Noninferiority.FAIL),
        ([math.inf], 0.05, Noninferiority.FAIL),
        ([-math.inf, 0.0], 0.05, Noninferiority.FAIL),
    ],
)
def test_harm_within_the_margin_is_shown_and_not_assumed(
    differences: list[float], margin: float, verdict: Noninferiority
) -> None:
    assert non_inferior(differences, margin) is verdict


@pytest.mark.parametrize("margin", [-0.1, math.nan, math.inf])
def test_a_margin_is_finite_and_not_negative(margin: float) -> None:
    with pytest.raises(ValueError):
        non_inferior([0.0, 0.0], margin)


