"""How likely memory suffices for a config, by what the trials so far took of it.

A peak is a constant and what grows with each knob of which more takes more, and with the products of several: batches
lie ready in proportion to workers, to what each keeps, and to their size. Other knobs add to it, and to what those add.
Bayesian linear regression in bytes (Bishop, Pattern Recognition and Machine Learning, 2006, section 3.3). A trial that
ended since memory did wanted more than it had taken by then, and than the limit; how much more nothing tells. One that
came to its end beyond its limit took what was read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from tuner.analysis.memory_forecast import NOISE
from tuner.model import Measurement, Trial
from tuner.search.tried import Floats, Indices
from tuner.space.resolved import Axis

CONSTANT, HEAVY, OTHER = 10.0, 0.2, 0.05
"""The standard deviations, before any is known, of the constant, of what the largest value of a knob adds of which more
takes more, and any value of another knob; as shares of what the first trial took."""
OF_ANY_BATCH = 0.2
"""That part of the latter on a device, whatever the batch."""
AT_LEAST, AT_MOST = 1.15, 2.0
"""What ended since memory did is taken to have wanted so many times the limit at least, and at most."""
MOST_UNSURE = 0.04
"""A peak, as a share of the limit, counts as known to so much at least: what nobody tried is to be found out."""

_Peak = tuple[Sequence[int], float]
"""A config's place on the axes, and its peak as a share of the limit."""


class MemoryModel:
    """Of one kind of memory, the device's or the host's. Configs are rows of indices into ``axes``.

    ``placed``: trials with their places on the axes. ``peak``: the bytes of a measurement, None where it doesn't tell.
    ``limit``: the bytes that a config may take. ``reason``: of a trial that ran out of this memory. ``of_device``: what
    computing takes is in it, which may be all in proportion to the batch.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        placed: Sequence[tuple[Trial, Sequence[int]]],
        peak: Callable[[Measurement], int | None],
        limit: int,
        reason: str,
        *,
        of_device: bool = False,
    ) -> None:
        self._features = _Features(axes, of_device=of_device)
        known, failed = list[_Peak](), list[Sequence[int]]()
        for trial, indices in placed:
            taken = _taken(trial, peak, limit, reason)
            if taken is not None:
                known.append((indices, taken / limit))
            elif trial.outcome is not None and trial.outcome.reason == reason:
                failed.append(indices)
        self._is_told = bool(known)
        self._first = known[0][1] if known else 0.0
        self._fit(known)
        if known and failed:
            wanted, _ = self._predict(np.array(failed, dtype=np.int64))
            self._fit([*known, *zip(failed, np.clip(wanted, AT_LEAST, AT_MOST).tolist(), strict=True)])

    def fits(self, configs: Indices) -> Floats:
        """The probability that each config's peak is within the limit; 1 where no trial told its own."""
        if not self._is_told:
            return np.ones(len(configs))
        mean, deviation = self._predict(configs)
        beyond = (mean - 1.0) / np.hypot(np.minimum(deviation, MOST_UNSURE), NOISE * np.maximum(mean, self._first))
        return np.array([0.5 * math.erfc(each / math.sqrt(2)) for each in beyond], dtype=np.float64)

    def _fit(self, peaks: Sequence[_Peak]) -> None:
        if not peaks:
            return
        taken = np.array([each for _, each in peaks])
        rows = self._features.of(np.array([indices for indices, _ in peaks], dtype=np.int64)) / (NOISE * taken)[:, None]
        self._covariance = np.linalg.inv(rows.T @ rows + np.diag((self._features.deviations * self._first) ** -2.0))
        self._weights = self._covariance @ rows.T @ np.full(len(peaks), 1.0 / NOISE)

    def _predict(self, configs: Indices) -> tuple[Floats, Floats]:
        """The mean and the standard deviation of each config's peak, as shares of the limit."""
        rows = self._features.of(configs)
        deviation = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", rows, self._covariance, rows), 0.0))
        return np.asarray(rows @ self._weights), np.asarray(deviation)


def _taken(trial: Trial, peak: Callable[[Measurement], int | None], limit: int, reason: str) -> int | None:
    """The bytes of the trial's peak; None where nothing tells. Of what ended early they'd be a part of it."""
    measured = trial.measurement
    if measured is None and trial.outcome is not None and trial.outcome.reason == reason:
        beyond = trial.outcome.measurement
        # Only a window that came to its end is steady: it was judged by the peak once it was through.
        measured = beyond if beyond is not None and beyond.steady and (peak(beyond) or 0) > limit else None
    return (peak(measured) or None) if measured is not None else None


class _Features:
    """What a peak is linear in, and the standard deviation that each one's weight has before any is known."""

    def __init__(self, axes: Sequence[Axis], *, of_device: bool) -> None:
        self._heavy = [
            (place, np.array(axis.values, dtype=np.float64) / _most(axis))
            for place, axis in enumerate(axes) if axis.knob.heavier and _most(axis) > 0.0
        ]  # fmt: skip
        heavy = {place: axes[place] for place, _ in self._heavy}
        self._others = [
            (place, value)
            for place, axis in enumerate(axes) if place not in heavy
            for value in range(len(axis.values)) if value != axis.as_written
        ]  # fmt: skip
        growths = [_growth(axis) if of_device and not axis.knob.loader else 1.0 for axis in heavy.values()]
        alone = [HEAVY * growth for growth in growths]
        together = [HEAVY] * (2 ** len(heavy) - 1 - len(heavy))
        # On a device a number format changes what each sample takes, be it to the half of it, and little else.
        with_others = [OTHER * OF_ANY_BATCH, *alone] if of_device else [OTHER] * (1 + len(heavy))
        self.deviations = np.array([CONSTANT, *alone, *together, *(with_others * len(self._others))])

    def of(self, configs: Indices) -> Floats:
        """A row for each config."""
        heavy = [scale[configs[:, place]] for place, scale in self._heavy]
        others = [(configs[:, place] == value).astype(np.float64) for place, value in self._others]
        counts = range(1, len(heavy) + 1)
        chosen = itertools.chain.from_iterable(itertools.combinations(heavy, count) for count in counts)
        columns = [np.ones(len(configs)), *(np.prod(each, axis=0) for each in chosen)]
        columns += [other * each for other in others for each in (np.ones(len(configs)), *heavy)]
        return np.stack(columns, axis=1)


def _most(axis: Axis) -> float:
    """The largest of its values; 0 where one of them is no number."""
    numbers = [float(value) for value in axis.values if isinstance(value, (int, float))]
    return max(numbers, default=0.0) if len(numbers) == len(axis.values) else 0.0


def _growth(axis: Axis) -> float:
    """How many times the script's own value the largest one is."""
    written = axis.values[axis.as_written]
    return _most(axis) / written if isinstance(written, (int, float)) and written > 0 else 1.0
