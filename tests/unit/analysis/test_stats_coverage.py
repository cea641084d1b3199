"""How often the intervals hold the truth, and the tests their level, on simulated runs with known truth.

The standard error of a coverage from 2000 runs is 0.5%.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.step_times import WEATHERS, trials

from tuner.analysis.stats import (
    Floats,
    Noninferiority,
    is_steady,
    mean_ratio_interval,
    non_inferior,
    rate_interval,
    trend,
)

RUNS = 2000
NOISES = ("normal", "log-normal", "t3")
SLOW = pytest.mark.slow
ONLY_T3 = pytest.mark.parametrize("noise", [pytest.param("normal", marks=SLOW), "t3"])
"""Each at its hardest in every run; the whole grid in those of everything."""


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
@pytest.mark.parametrize("autocorrelation", [*(pytest.param(each, marks=SLOW) for each in (0.0, 0.25)), 0.5])
def test_a_rate_interval_of_forty_blocks_is_honest(noise: str, autocorrelation: float) -> None:
    assert 0.93 <= _coverage(_block_seconds(noise, autocorrelation, RUNS, 40)) <= 0.98


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("blocks", [5, *(pytest.param(each, marks=SLOW) for each in (10, 20, 80))])
def test_a_rate_interval_of_few_or_many_blocks_is_not_too_narrow(noise: str, blocks: int) -> None:
    assert _coverage(_block_seconds(noise, 0.25, RUNS, blocks)) >= 0.93
    assert _coverage(_block_seconds(noise, 0.5, RUNS, blocks)) >= 0.92


@pytest.mark.parametrize("runs", [RUNS // 4, pytest.param(RUNS, marks=SLOW)])
def test_a_trials_interval_is_honest_where_the_step_clock_ends_its_window(runs: int) -> None:
    """Over many trials of step times that are correlated, drift and have heavy tails, from records to interval.

    Per kind of scatter, and beside a moving-block bootstrap: tests/benchmarks/window_coverage.py.
    """
    each = -(-runs // len(WEATHERS))
    held = []
    for weather in WEATHERS:
        found = [measurement.low <= truth <= measurement.high for measurement, truth in trials(weather, each)]
        assert sum(found) / each >= 0.88, weather
        held += found
    assert 0.93 <= sum(held) / len(held) <= 0.98


@pytest.mark.parametrize("noise", [*(pytest.param(noise, marks=SLOW) for noise in NOISES[:-1]), NOISES[-1]])
@pytest.mark.parametrize("autocorrelation", [pytest.param(0.0, marks=SLOW), 0.5])
def test_a_steady_series_is_seldom_called_unsteady(noise: str, autocorrelation: float) -> None:
    rows = _block_seconds(noise, autocorrelation, RUNS, 40).tolist()
    assert sum(trend(row).p_value < 0.05 for row in rows) / len(rows) <= 0.08
    assert sum(not is_steady(row) for row in rows) / len(rows) <= 0.12
    short = _block_seconds(noise, autocorrelation, RUNS, 16).tolist()
    assert sum(not is_steady(row) for row in short) / len(short) <= 0.14


@ONLY_T3
@pytest.mark.parametrize(
    ("shape", "least"),
    [
        (np.where(np.arange(40) < 10, 1.1, 1.0), (0.9, 0.55)),
        (np.where(np.arange(40) < 20, 1.0, 1.1), (0.95, 0.7)),
        (1 + 0.3 * np.exp(-np.arange(40) / 4), (0.97, 0.8)),
        (1 + 0.3 * np.exp(-np.arange(40) / 2), (0.9, 0.65)),
    ],
    ids=["a level after a quarter", "a level after a half", "a warm-up", "a short warm-up"],
)
def test_what_the_series_settled_from_is_found(noise: str, shape: Floats, least: tuple[float, float]) -> None:
    for autocorrelation, share in zip((0.0, 0.5), least, strict=True):
        rows = (_block_seconds(noise, autocorrelation, 1000, 40, spread=0.04) * shape).tolist()
        found = sum(not is_steady(row) for row in rows) / len(rows)
        by_trend = sum(trend(row).p_value < 0.05 for row in rows) / len(rows)
        assert found >= max(share, by_trend)


@ONLY_T3
@pytest.mark.parametrize(
    ("autocorrelation", "drift", "least"), [(0.0, 0.10, 0.8), (0.0, 0.15, 0.9), (0.5, 0.15, 0.6), (0.5, 0.30, 0.9)]
)
def test_a_drift_that_no_interval_covers_is_called_unsteady(
    noise: str, autocorrelation: float, drift: float, least: float
) -> None:
    seconds = _block_seconds(noise, autocorrelation, 500, 40) * np.linspace(1, 1 + drift, 40)
    assert sum(not is_steady(row) for row in seconds.tolist()) / 500 >= least


@pytest.mark.parametrize(
    ("pairs", "others"), [(2, 2), (5, 4), *(pytest.param(*each, marks=SLOW) for each in ((3, 3), (5, 5), (8, 3)))]
)
def test_a_ratio_interval_of_fresh_runs_is_honest(pairs: int, others: int) -> None:
    random = np.random.default_rng(pairs)
    before = 100 * np.exp(0.05 * random.standard_normal((RUNS, pairs)))
    after = 110 * np.exp(0.05 * random.standard_normal((RUNS, others)))
    intervals = [mean_ratio_interval(b, a) for b, a in zip(before.tolist(), after.tolist(), strict=True)]
    held = sum(interval.low <= 1.1 <= interval.high for interval in intervals) / RUNS
    assert 0.935 <= held <= 0.97


@ONLY_T3
@pytest.mark.parametrize("drift", ["steady", "slope", "walk", "load"])
@pytest.mark.parametrize("rounds", [5, pytest.param(11, marks=SLOW)])
def test_a_ratio_of_interleaved_runs_is_honest_on_a_machine_that_drifts(noise: str, drift: str, rounds: int) -> None:
    """Rounds of baseline and candidate in random order, while the whole machine becomes slower or is shared."""
    random = np.random.default_rng([rounds, NOISES.index(noise), len(drift)])
    shape = (RUNS, 2 * rounds)
    shocks = random.standard_t(3, shape) / math.sqrt(3) if noise == "t3" else random.standard_normal(shape)
    level = {
        "steady": np.zeros(shape),
        "slope": np.broadcast_to(np.linspace(0, 0.3, 2 * rounds), shape),
        "walk": 0.03 * random.standard_normal(shape).cumsum(axis=1),
        "load": -0.3 * ((random.random(shape) < 0.2).cumsum(axis=1) % 2),
    }[drift]
    rates = np.exp(level + 0.03 * shocks).reshape(RUNS, rounds, 2)
    swapped = random.random((RUNS, rounds, 1)) < 0.5
    rates = np.where(swapped, rates[:, :, ::-1], rates)
    before, after = 100 * rates[:, :, 0], 110 * rates[:, :, 1]
    intervals = [mean_ratio_interval(b, a) for b, a in zip(before.tolist(), after.tolist(), strict=True)]
    assert 0.935 <= sum(interval.low <= 1.1 <= interval.high for interval in intervals) / RUNS <= 0.985


def test_harm_at_the_margin_passes_no_more_often_than_promised() -> None:
    differences = np.random.default_rng(7).normal(0.05, 0.03, (4000, 3)).tolist()
    verdicts = [non_inferior(row, 0.05) for row in differences]
    assert verdicts.count(Noninferiority.PASS) / 4000 <= 0.06
    assert verdicts.count(Noninferiority.FAIL) / 4000 <= 0.06
