"""What blocks and runs say, with honest bounds: rates, ratios, trends, steadiness, non-inferiority.

Pure functions of numbers. A block is a few consecutive steps timed together; `samples` and `seconds` hold one entry a
block, in the order of time. Rates are in samples per second, confidences and levels are fractions in (0, 1).
Statistics never drop a reading: what looks unsteady is labelled, and the caller decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MAX_AUTOCORRELATION = 0.9
_APART = 4.0  # standard errors between two levels of a series that was split where they differ most


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval; `low` may be 0 and `high` infinite where nothing is known."""

    estimate: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width as a fraction of the estimate; infinite where the estimate is 0."""
        return (self.high - self.low) / (2 * abs(self.estimate)) if self.estimate else math.inf


@dataclass(frozen=True)
class Trend:
    """A line through a series: slope as a fraction of the mean per block, and two-sided p-value."""

    slope: float
    p_value: float


class Noninferiority(StrEnum):
    """Whether a candidate is worse than the baseline by no more than a margin."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


def rate_interval(samples: Sequence[float], seconds: Sequence[float], confidence: float = 0.95) -> Interval:
    """The rate sum(samples) / sum(seconds), in samples per second, of consecutive blocks of one run.

    A Student t interval on the log rate. The ratio's linearised residuals are taken for an AR(1) process: the lag-1
    autocorrelation, corrected for small-sample bias (Kendall, Biometrika 41, 1954) and taken as 0 where negative,
    gives the long-run variance (prewhitening; Andrews and Monahan, Econometrica 60, 1992), and the degrees of freedom
    pay for having estimated both (delta method). A moving-block bootstrap (Kuensch, Ann. Stat. 17, 1989) was measured
    and left out: of 36,000 simulated trials whose step times were correlated, drifted or had heavy tails this interval
    covers 96.9% (95 to 99% of a kind), the bootstrap's percentile interval 87.0% (82 to 92%): too few blocks
    (tests/benchmarks/window_coverage.py).

    With 10 to 80 blocks, 95% intervals cover the truth in 93 to 98% of simulated runs (99% at 10 independent blocks)
    for autocorrelation up to 0.5 and normal, log-normal or t3 noise (tests/unit/analysis/test_stats_coverage.py). Of a
    series that drifts the interval speaks of the window measured, not of the run, and is too wide; see `is_steady`.

    Fewer than two blocks, or no samples at all, bound nothing: low is 0 and high infinite. Raises ValueError on no
    blocks, on lengths that differ, and on entries that aren't finite, samples below 0 or seconds not above 0.
    """
    amounts, times = _blocks(samples, seconds)
    estimate = float(amounts.sum() / times.sum())
    reach = _upper_tail(confidence)
    if len(amounts) < 2 or estimate == 0:
        return Interval(estimate, 0.0, math.inf)
    error, degrees = mean_error((amounts - estimate * times) / amounts.mean())
    return _from_log(estimate, student_t_quantile(reach, degrees) * error)


def mean_ratio_interval(baseline: Sequence[float], candidate: Sequence[float], confidence: float = 0.95) -> Interval:
    """How many times the baseline's mean rate the candidate's is, from one rate (> 0) per fresh run.

    Means are geometric. Equal lengths are taken as interleaved pairs, in order: a t interval on the mean log ratio
    with n - 1 degrees of freedom, so that three pairs give a wide but honest answer. Lengths that differ: Welch's t
    interval on the difference of mean logs (Biometrika 34, 1947). Fewer than two runs on a side bound nothing: low is
    0 and high infinite. Raises ValueError where a side is empty or a rate isn't finite and positive.
    """
    before, after = _logs(baseline), _logs(candidate)
    estimate = _exp(float(after.mean() - before.mean()))
    if min(len(before), len(after)) < 2:
        return Interval(estimate, 0.0, math.inf)
    if len(before) == len(after):
        variance = float((after - before).var(ddof=1)) / len(after)
        degrees = len(after) - 1.0
    else:
        parts = [float(logs.var(ddof=1)) / len(logs) for logs in (before, after)]
        variance = sum(parts)
        weights = [part / variance if variance > 0 else 0.5 for part in parts]
        degrees = 1 / (weights[0] ** 2 / (len(before) - 1) + weights[1] ** 2 / (len(after) - 1))
    half = student_t_quantile(_upper_tail(confidence), degrees) * math.sqrt(variance)
    return _from_log(estimate, half)


def trend(values: Sequence[float]) -> Trend:
    """The least-squares line through a series of readings, one a block, robust to autocorrelation.

    The slope's standard error is widened for AR(1) residuals, with the bias correction for a fitted line, and its t
    test has the degrees of freedom that are left (as in `rate_interval`). Fewer than four readings show nothing: p is
    1 (the slope 0 where there is one reading). A mean of 0 leaves the slope absolute. Raises ValueError where
    `values` is empty or holds what isn't finite.
    """
    series = _finite(values)
    n = len(series)
    scale = abs(float(series.mean())) or 1.0
    if n < 2:
        return Trend(0.0, 1.0)
    time = np.arange(n) - (n - 1) / 2
    squares = float(time @ time)
    slope = float(time @ series) / squares
    residuals = series - series.mean() - slope * time
    relative = slope / scale
    if n < 4:
        return Trend(relative, 1.0)
    total = float(residuals @ residuals)
    if total <= n * (1e-12 * scale) ** 2:  # a perfect line, to rounding
        return Trend(relative, 1.0 if abs(relative) * n < 1e-9 else 0.0)
    rho = _autocorrelation(residuals, bias=(2.0, 4.0))
    error = math.sqrt(total / (n - 2) / squares * (1 + rho) / (1 - rho))
    statistic = abs(slope) / error
    return Trend(relative, 2 * student_t_cdf(-statistic, degrees_of(n, rho, fitted=2)))


def is_steady(values: Sequence[float], *, significance: float = 0.05, tolerance: float = 0.01) -> bool:
    """Whether a series, one reading a block, shows neither a trend nor a part that it settled from.

    Unsteady is a trend with p below `significance` and a drift over the whole window above `tolerance`, a fraction of
    the mean; and a level before `steady_start` that moves the mean by more than `tolerance` and lies `_APART` standard
    errors (AR(1), as in `trend`) from the level after it, so many since the place was chosen to show the difference.
    A label only: nothing is trimmed, and a steady state isn't guaranteed (Barrett et al., OOPSLA 2017). A series that
    rises and falls back, and one shorter than four, pass as steady. Raises as `trend` does.

    Of stationary series of 16 or 40 blocks 2 to 12% are called unsteady (autocorrelation 0 to 0.5); of those whose
    level changes by 10% after a quarter or half of 40 blocks 62 to 99%, where the trend alone finds 21 to 97%; of
    those that settle from 30% above by a factor e every two or four blocks 73 to 99%, where it finds 8 to 52% (noise
    of 4%; tests/unit/analysis/test_stats_coverage.py).
    """
    line = trend(values)
    drifts = line.p_value < significance and abs(line.slope) * len(values) > tolerance
    return not drifts and not _settles_late(_finite(values), tolerance)


def _settles_late(series: Floats, tolerance: float) -> bool:
    start = steady_start(series.tolist())
    if not start:
        return False
    early, late = series[:start], series[start:]
    if abs(series.mean() - late.mean()) <= tolerance * abs(late.mean()):
        return False
    # The settled part alone says how much noise there is: a warm-up differs within itself.
    residuals = late - late.mean()
    rho = _autocorrelation(residuals, bias=(1.0, 3.0))
    variance = float(residuals @ residuals) / (len(late) - 1)
    shares = sum(1 / max(1.0, len(part) * (1 - rho) / (1 + rho)) for part in (early, late))
    return abs(float(early.mean() - late.mean())) > _APART * math.sqrt(variance * shares)


def steady_start(values: Sequence[float]) -> int:
    """The index at which warm-up seems to have ended; half the length where the series hadn't settled by then.

    MSER (White, Simulation 69, 1997): drop the first d readings where that minimises the squared standard error of
    the mean of the rest, d being sought in the first half only. A series shorter than four shows nothing: 0. Noise
    alone gives places above 0, too: see `is_steady`. Raises ValueError where `values` is empty or not finite.
    """
    series = _finite(values)
    count = len(series)
    if count < 4:
        return 0
    means = series - series[count // 2 :].mean()
    left = np.arange(count, 0, -1)
    rest = means[::-1].cumsum()[::-1]
    squares = (means**2)[::-1].cumsum()[::-1]
    errors = np.maximum(squares - rest**2 / left, 0.0) / left**2.0
    errors[errors <= (1e-12 * np.abs(series).max()) ** 2] = 0.0  # rounding
    return int(errors[: count // 2 + 1].argmin())


def non_inferior(differences: Sequence[float], margin: float, confidence: float = 0.95) -> Noninferiority:
    """Whether a candidate is worse than the baseline by at most `margin`, from paired differences.

    Differences are candidate against baseline, positive where the candidate is worse, in the metric's unit, as the
    margin (>= 0). One-sided t bounds on their mean at `confidence`: pass where the upper one is within the margin,
    fail where the lower one is beyond it, else inconclusive; so "not significant" never passes. A difference that
    isn't finite fails. Fewer than two pairs are inconclusive. Raises ValueError on a margin that isn't finite or is
    negative, or a confidence outside (0, 1).
    """
    _inside(confidence)
    if not 0 <= margin < math.inf:
        raise ValueError(f"a margin is finite and not negative, unlike {margin}")
    values = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(values).all():
        return Noninferiority.FAIL
    if len(values) < 2:
        return Noninferiority.INCONCLUSIVE
    low, high = one_sided_bounds(differences, confidence)
    if high <= margin:
        return Noninferiority.PASS
    return Noninferiority.FAIL if low > margin else Noninferiority.INCONCLUSIVE


def one_sided_bounds(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The lower and the upper t bound on the values' mean, each at `confidence`; infinite without two values."""
    if len(values) < 2 or not all(math.isfinite(value) for value in values):
        return -math.inf, math.inf
    series = _finite(values)
    error = float(series.std(ddof=1)) / math.sqrt(len(series))
    reach = student_t_quantile(confidence, len(series) - 1.0) * error
    return float(series.mean()) - reach, float(series.mean()) + reach


@lru_cache(maxsize=256)
def pocock_level(alpha: float, looks: int) -> float:
    """The two-sided level for each of `looks` equally spaced looks that keeps the whole at `alpha`.

    Pocock (Biometrika 64, 1977), as in JRSS A 132 (1969). Raises ValueError on alpha outside (0, 1) or no look.
    """
    if looks < 1:
        raise ValueError(f"there is at least one look, not {looks}")
    low, high = _inside(alpha) / looks, alpha  # Bonferroni's level is too strict, alpha itself too lax
    below, above = (_crossing_probability(end, looks) - alpha for end in (low, high))
    level, excess = high, above
    for _ in range(100):  # Illinois' false position: a fifth of the integrals that halving takes
        if abs(excess) <= 1e-10 * alpha + 1e-15:
            break
        level, last = (low * above - high * below) / (above - below), excess
        excess = _crossing_probability(level, looks) - alpha
        if excess < 0:
            low, below, above = level, excess, above / 2 if last < 0 else above
        else:
            high, above, below = level, excess, below / 2 if last > 0 else below
    return level


def _crossing_probability(level: float, looks: int) -> float:
    """The chance that a driftless Gaussian walk crosses the two-sided `level` at any of `looks` equal steps."""
    bound = NormalDist().inv_cdf(1 - level / 2)
    nodes, weights = np.polynomial.legendre.leggauss(32 + 8 * looks)
    at, inside = nodes * bound, 1 - level
    density = np.exp(-(at**2) / 2) / math.sqrt(2 * math.pi)
    for look in range(2, looks + 1):
        scale = bound * math.sqrt(look - 1)
        mass = density * weights * scale
        reached = nodes * bound * math.sqrt(look)
        steps = reached[:, None] - at[None, :]
        density = np.exp(-(steps**2) / 2) @ mass / math.sqrt(2 * math.pi)
        at = reached
        inside = float(density @ weights) * bound * math.sqrt(look)
    return 1 - inside


def student_t_cdf(value: float, degrees: float) -> float:
    """The chance that a Student t variable with `degrees` (> 0) of freedom is at most `value`."""
    if not degrees > 0:
        raise ValueError(f"degrees of freedom are above 0, unlike {degrees}")
    square = value * value
    if math.isinf(square):
        tail = 0.0
    elif square > degrees:
        tail = _incomplete_beta(degrees / (degrees + square), degrees / 2, 0.5) / 2
    else:
        tail = (1 - _incomplete_beta(square / (degrees + square), 0.5, degrees / 2)) / 2
    return tail if value < 0 else 1 - tail


@lru_cache(maxsize=4096)
def student_t_quantile(probability: float, degrees: float) -> float:
    """The value that a Student t variable stays below with `probability`, found by bracketed Newton steps.

    Raises ValueError on a probability outside (0, 1) or degrees of freedom that aren't above 0.
    """
    tail = min(_inside(probability), 1 - probability)
    low, high = -1.0, 0.0
    while student_t_cdf(low, degrees) > tail and low > -1e150:
        low, high = 2 * low, low
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(degrees * math.pi) / 2
    value = (low + high) / 2
    for _ in range(200):
        excess = student_t_cdf(value, degrees) - tail
        low, high = (low, value) if excess > 0 else (value, high)
        slope = math.exp(log_scale - (degrees + 1) / 2 * math.log1p(value * value / degrees))
        following = value - excess / slope if slope > 0 else -math.inf
        if not low <= following <= high:
            following = (low + high) / 2
        if abs(following - value) <= 1e-14 * abs(following):
            break
        value = following
    return value if probability < 0.5 else -value


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by Lentz's continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    upper, lower = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = lower
    for m in range(1, 5000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower = 1 / (1 + term * lower or 1e-300)
            upper = 1 + term / upper or 1e-300
            fraction *= upper * lower
        if abs(upper * lower - 1) < 1e-15:
            break
    return front * fraction


def mean_error(residuals: Floats) -> tuple[float, float]:
    """The standard error of an AR(1) series' mean, and its degrees of freedom; n >= 2."""
    n = len(residuals)
    centred = residuals - residuals.mean()
    rho = _autocorrelation(centred, bias=(1.0, 3.0))
    # n var(mean) / variance of an AR(1) process, and the share of its variance that n readings show
    inflation = (1 + rho) / (1 - rho) - 2 * rho * (1 - rho**n) / (n * (1 - rho) ** 2)
    shown = max(1 - (inflation - 1) / (n - 1), 0.2)
    variance = float(centred @ centred) / (n - 1) * inflation / shown
    return math.sqrt(variance / n), degrees_of(n, rho, fitted=1)


def _autocorrelation(centred: Floats, bias: tuple[float, float]) -> float:
    """Lag-1 autocorrelation plus its small-sample bias (b0 + b1 rho)/n, in [0, 0.9] (Kendall 1954)."""
    total = float(centred @ centred)
    if total <= 0:
        return 0.0
    rho = float(centred[1:] @ centred[:-1]) / total
    rho += (bias[0] + bias[1] * rho) / len(centred)
    return min(max(rho, 0.0), _MAX_AUTOCORRELATION)


def degrees_of(n: int, rho: float, fitted: int) -> float:
    """Those of an estimated AR(1) long-run variance, 2 / var(log): var is 2/n + 4 (1+rho)/(n (1-rho))."""
    return min(max(n / (1 + 2 * (1 + rho) / (1 - rho)), 2.0), float(n - fitted))


def _inside(fraction: float) -> float:
    if not 0 < fraction < 1:
        raise ValueError(f"a confidence, level or probability lies between 0 and 1, unlike {fraction}")
    return fraction


def _upper_tail(confidence: float) -> float:
    return (1 + _inside(confidence)) / 2


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf  # beyond that a float overflows


def _from_log(estimate: float, half: float) -> Interval:
    return Interval(estimate, estimate * _exp(-half), estimate * _exp(half))


def _finite(values: Sequence[float]) -> Floats:
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1 or not len(series) or not np.isfinite(series).all():
        raise ValueError("a series holds at least one reading, and only finite ones")
    return series


def _logs(rates: Sequence[float]) -> Floats:
    series = _finite(rates)
    if (series <= 0).any():
        raise ValueError("a rate is above 0")
    return np.log(series)


def _blocks(samples: Sequence[float], seconds: Sequence[float]) -> tuple[Floats, Floats]:
    amounts, times = _finite(samples), _finite(seconds)
    if len(amounts) != len(times):
        raise ValueError(f"{len(amounts)} blocks of samples but {len(times)} of seconds")
    if (amounts < 0).any() or (times <= 0).any():
        raise ValueError("a block's samples are not negative, and its seconds above 0")
    return amounts, times
