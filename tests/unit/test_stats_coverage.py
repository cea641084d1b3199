"""How often the intervals hold the truth, and the tests their level, on simulated runs with known truth.

The standard error of a coverage from 2000 runs is 0.5%.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tuner.stats import (
    Floats,
    Verdict,
    is_steady,
    mean_ratio_interval,
    non_inferior,
    rate_interval,
    should_stop,
    trend,
)

RUNS = 2000
NOISES = ("normal", "log-normal", "t3")


def _block_seconds(noise: str, autocorrelation: float, runs: int, blocks: int, spread: float = 0.05) -> Floats:
    """Stationary AR(1) seconds a block with mean 1, of shape (runs, blocks); log-normal ones have sigma 0.5."""
    random = np.random.default_rng([NOISES.index(noise), round(100 * autocorrelation), blocks])
    shape = (blocks + 50, runs)
    shocks = random.standard_t(3, shape) / math.sqrt(3) if noise == "t3" else random.standard_normal(shape)
    state = shocks[0]
    states = []
    for shock in shocks[1:]:
        state = autocorrelation * state + math.sqrt(1 - autocorrelation**2) * shock
        states.append(state)
    series = np.array(states[-blocks:]).T
    if noise == "log-normal":
        return np.asarray(np.exp(0.5 * series - 0.125))
    return np.maximum(1 + spread * series, 0.01)


def _coverage(seconds: Floats) -> float:
    samples = [32.0] * seconds.shape[1]
    intervals = [rate_interval(samples, row) for row in seconds.tolist()]
    return sum(interval.low <= 32 <= interval.high for interval in intervals) / len(intervals)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("autocorrelation", [0.0, 0.25, 0.5])
def test_a_rate_interval_of_forty_blocks_is_honest(noise: str, autocorrelation: float) -> None:
    assert 0.93 <= _coverage(_block_seconds(noise, autocorrelation, RUNS, 40)) <= 0.98


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("blocks", [5, 10, 20, 80])
def test_a_rate_interval_of_few_or_many_blocks_is_not_too_narrow(noise: str, blocks: int) -> None:
    assert _coverage(_block_seconds(noise, 0.25, RUNS, blocks)) >= 0.93
    assert _coverage(_block_seconds(noise, 0.5, RUNS, blocks)) >= 0.92


@pytest.mark.parametrize(("autocorrelation", "least"), [(0.0, 0.955), (0.25, 0.925), (0.5, 0.895)])
def test_stopping_when_narrow_costs_little_coverage(autocorrelation: float, least: float) -> None:
    rows = _block_seconds("normal", autocorrelation, RUNS, 150, spread=0.04).tolist()
    held = 0
    for row in rows:
        stop = next((n for n in range(10, 150) if should_stop([1.0] * n, row[:n])), 150)
        interval = rate_interval([1.0] * stop, row[:stop])
        held += interval.low <= 1 <= interval.high
    assert held / len(rows) >= least


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("autocorrelation", [0.0, 0.5])
def test_a_steady_series_is_seldom_called_unsteady(noise: str, autocorrelation: float) -> None:
    rows = _block_seconds(noise, autocorrelation, 1000, 40).tolist()
    assert sum(trend(row).p_value < 0.05 for row in rows) / len(rows) <= 0.08


@pytest.mark.parametrize("noise", ["normal", "t3"])
@pytest.mark.parametrize(
    ("autocorrelation", "drift", "least"), [(0.0, 0.10, 0.8), (0.0, 0.15, 0.9), (0.5, 0.15, 0.6), (0.5, 0.30, 0.9)]
)
def test_a_drift_that_no_interval_covers_is_called_unsteady(
    noise: str, autocorrelation: float, drift: float, least: float
) -> None:
    seconds = _block_seconds(noise, autocorrelation, 500, 40) * np.linspace(1, 1 + drift, 40)
    assert sum(not is_steady(row) for row in seconds.tolist()) / 500 >= least


@pytest.mark.parametrize(("pairs", "others"), [(2, 2), (3, 3), (5, 5), (5, 4), (8, 3)])
def test_a_ratio_interval_of_fresh_runs_is_honest(pairs: int, others: int) -> None:
    random = np.random.default_rng(pairs)
    before = 100 * np.exp(0.05 * random.standard_normal((RUNS, pairs)))
    after = 110 * np.exp(0.05 * random.standard_normal((RUNS, others)))
    intervals = [mean_ratio_interval(b, a) for b, a in zip(before.tolist(), after.tolist(), strict=True)]
    held = sum(interval.low <= 1.1 <= interval.high for interval in intervals) / RUNS
    assert 0.935 <= held <= 0.97


def test_harm_at_the_margin_passes_no_more_often_than_promised() -> None:
    differences = np.random.default_rng(7).normal(0.05, 0.03, (4000, 3)).tolist()
    verdicts = [non_inferior(row, 0.05) for row in differences]
    assert verdicts.count(Verdict.PASS) / 4000 <= 0.06
    assert verdicts.count(Verdict.FAIL) / 4000 <= 0.06
