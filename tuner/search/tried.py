"""The trials that gave a figure, as arrays: what models and comparisons of many configs are computed from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuner.analysis.bottleneck import Bottleneck
from tuner.model import Measurement, Phase, Trial
from tuner.search.waiting import costly_wait, sees_wait
from tuner.space.resolved import ResolvedSpace

LEAST_NOISE = 0.01
"""No gain's logarithm has a smaller standard deviation, whatever its trial's own interval says: processes differ."""
UNKNOWN_NOISE = 0.05
"""That of a trial without an interval."""

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Readings:
    """One row a config that was read: ``indices`` into the space's axes, in their order; the logarithm of its gain, and
    that one's standard deviation.
    """

    indices: Indices
    gains: Floats
    noise: Floats

    def __len__(self) -> int:
        return len(self.gains)


@dataclass(frozen=True)
class Tried(Readings):
    """Those of trials, and the share of the time that their loops wait for data, NaN where nothing shows it."""

    trials: tuple[Trial, ...]
    waits: Floats


def tried(
    space: ResolvedSpace,
    trials: Iterable[Trial],
    indices_of: Callable[[Trial], Sequence[int] | None],
    gain_of: Callable[[Trial], float | None],
    bottleneck: Bottleneck | None,
) -> Tried:
    """The table of those trials that have a gain and lie on the axes; others say nothing here. Neither do those of
    which too little was read to bound a gain: they are given one of exactly 1.
    """
    rows: list[tuple[Trial, Sequence[int], float]] = []
    for trial in trials:
        own, indices = gain_of(trial), indices_of(trial)
        if own is not None and indices is not None and _is_bounded(trial.measurement):
            rows.append((trial, indices, math.log(own)))
    return Tried(
        np.array([indices for _, indices, _ in rows], dtype=np.int64).reshape(len(rows), len(space.axes)),
        np.array([own for _, _, own in rows], dtype=np.float64),
        np.array([noise_of(trial.measurement) for trial, _, _ in rows], dtype=np.float64),
        tuple(trial for trial, _, _ in rows),
        np.array([costly_wait(t, bottleneck) if sees_wait(t) else math.nan for t, _, _ in rows], dtype=np.float64),
    )


def _is_bounded(measurement: Measurement | None) -> bool:
    reference = measurement.reference if measurement is not None else None
    return reference is None or 0 < reference.gain.low <= reference.gain.high < math.inf


def noise_of(measurement: Measurement | None) -> float:
    """The standard deviation of the logarithm of a trial's gain, by its own interval."""
    if measurement is None:
        return UNKNOWN_NOISE
    interval = measurement.reference.gain if measurement.reference is not None else measurement
    deviation = log_deviation(interval.low, interval.high)
    return UNKNOWN_NOISE if deviation is None else deviation


def log_deviation(low: float, high: float) -> float | None:
    """The standard deviation of the logarithm of what has this 95% interval; None where that isn't bounded."""
    return max(LEAST_NOISE, math.log(high / low) / (2 * 1.96)) if 0 < low <= high < math.inf else None


def gain_noise(trial: Trial, other: Trial) -> float:
    """The standard deviation of the logarithm of the ratio of two trials' gains.

    What took turns with the script as written is held against that as it was then: the baseline's own run adds none.
    """
    noises = [noise_of(each.measurement) for each in (trial, other)]
    by_turns = any(each.measurement is not None and each.measurement.reference is not None for each in (trial, other))
    kept = [
        noise for noise, each in zip(noises, (trial, other), strict=True)
        if not (by_turns and each.phase is Phase.BASELINE)
    ]  # fmt: skip
    return math.hypot(*kept)
