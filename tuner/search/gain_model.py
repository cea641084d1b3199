"""A log-additive model of gains: Bayesian linear regression on knobs' values and on pairs of them. NumPy only.

The logarithm of a config's gain is a sum over its knobs, with the script as written at exactly 0, and a smaller sum
over pairs of knobs. A value of a knob that isn't ordered has an effect of its own; along an ordered knob each step has
one, and neighbouring steps are alike: where the last one gained, the next one is likely to. All effects are normal
around 0. How large those of each knob are, how much pairs bring, and how much trials scatter beyond their own
intervals, is what makes the trials most likely of a few choices: pairs count for nothing until data support them, and
that a batch brings twenty times the rate says nothing of what a number format may. Computed in its dual form, whose
size is the number of trials (Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1).
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.search.tried import Floats, Indices, Readings, Tried
from tuner.space.resolved import Axis

VALUE_EFFECT, STEP_EFFECT = 0.25, 0.15
"""The standard deviations of the effect of a value, and of one step along an ordered knob, before any is known."""
STEPS_ALIKE = 0.5
"""The correlation of neighbouring steps; of those further apart it is that much smaller each time."""
SIZES = (0.5, 1.0, 2.0, 4.0)
"""Times which the effects of one knob may be. Without any support they are as above: to double or to halve them takes
half a unit of the logarithm of the likelihood, and twice as often four times that."""
SWEEPS = 2
"""So often each knob's size and the others are chosen in turn, given the rest."""
PAIRS = (0.0, 0.06, 0.15)
"""The standard deviation of what two values bring together beyond what they bring one by one may be one of these."""
SCATTERS = (0.005, 0.03, 0.08)
"""That of a trial beyond its own interval may be one of these."""

OWN_NOISE = 0.08
OWN_SURE = 1.64
"""What a trial read beyond the model's mean is its config's own as far as it exceeds so many standard deviations: of
its reading, and of what trials may scatter by beyond their own intervals (the largest of ``SCATTERS``)."""

CHOSEN_BY = 40
"""So many readings, the first ones, decide between these: more take long and say no more."""


@dataclass(frozen=True)
class _Choice:
    sizes: tuple[float, ...]
    """One an axis."""
    pairs: float
    scatter: float


@dataclass(frozen=True)
class _Features:
    """Per config, whose inner products are the sums over knobs of the main effects' covariance, of how alike two
    configs' turned values are, and of the square of that.
    """

    main: Floats
    alike: Floats
    squared: Floats

    def first(self, count: int) -> _Features:
        """Those of the first configs."""
        return _Features(self.main[:count], self.alike[:count], self.squared[:count])


class GainModel:
    """Fitted to the trials, of which there is one at least, and to what else was read of configs (``beside``). Configs
    are rows of indices into ``axes``.
    """

    def __init__(self, axes: Sequence[Axis], tried: Tried, beside: Readings | None = None) -> None:
        self._tables = [_tables(axis) for axis in axes]
        self._factors = [tuple(_factor(table) for table in (main, alike, alike**2)) for main, alike in self._tables]
        self._tried: Readings = tried
        self.read: Readings = tried if beside is None else _joined(beside, tried)
        widths = [factors[0].shape[1] for factors in self._factors]
        self._axis_of = np.repeat(np.arange(len(widths)), widths)
        """Of each column of the features: its axis' place."""
        self._as_written = np.array([axis.as_written for axis in axes])
        self._origin = self._origin_of(tried)
        self._features = self._features_of(self.read.indices)
        self._choice = self._chosen()
        self._inverse, self._weights = self._solved()

    def of_others(self, read: Readings, origin: float | None = None, *, anew: bool = True) -> GainModel:
        """The same of other figures of configs, with effects as large as make these likely, or as these are where not
        ``anew``. ``origin``: that of the script as written, None for what was read of it.
        """
        other = copy.copy(self)
        other._tried, other.read = read, read
        other._origin = self._origin_of(read) if origin is None else origin
        other._features = other._features_of(read.indices)
        other._choice = other._chosen() if anew else self._choice
        other._inverse, other._weights = other._solved()
        return other

    def means(self, configs: Indices) -> Floats:
        """The mean of the logarithm of each config's gain."""
        cross = self._covariance(self._features_of(configs), self._features, self._choice)
        return np.asarray(self._origin + cross @ self._weights, dtype=np.float64)

    def predict(self, configs: Indices) -> tuple[Floats, Floats]:
        """The mean and the standard deviation of the logarithm of each config's gain."""
        features = self._features_of(configs)
        cross = self._covariance(features, self._features, self._choice)
        prior = self._variance(features)
        known = np.einsum("ij,ij->i", cross @ self._inverse, cross)
        return self._origin + cross @ self._weights, np.sqrt(np.maximum(prior - known, 1e-12))

    def of_tried(self) -> Floats:
        """The logarithm of the gain to expect of each tried config: the model's mean, and what its trial read beyond
        that as far as it is too much to be noise.
        """
        mean = self.means(self._tried.indices)
        beyond = self._tried.gains - mean
        noise = OWN_SURE * np.hypot(self._tried.noise, OWN_NOISE)
        return np.asarray(mean + np.sign(beyond) * np.maximum(np.abs(beyond) - noise, 0.0), dtype=np.float64)

    def difference(self, pair: Indices) -> tuple[float, float]:
        """By how much the logarithm of the first one's gain is above that of the second (two rows), and the standard
        deviation of that.
        """
        features = self._features_of(pair)
        cross = self._covariance(features, self._features, self._choice)
        apart = cross[0] - cross[1]
        prior = self._covariance(features, features, self._choice)
        variance = prior[0, 0] + prior[1, 1] - 2 * prior[0, 1] - apart @ self._inverse @ apart
        return float(apart @ self._weights), math.sqrt(max(float(variance), 1e-12))

    def draw(self, configs: Indices, count: int, chance: np.random.Generator) -> Floats:
        """So many joint draws (rows) of the logarithms of the configs' gains (columns)."""
        features = self._features_of(configs)
        cross = self._covariance(features, self._features, self._choice)
        covariance = self._covariance(features, features, self._choice) - cross @ self._inverse @ cross.T
        values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
        normal = chance.standard_normal((count, len(configs)))
        drawn = (normal * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        return np.asarray(self._origin + cross @ self._weights + drawn, dtype=np.float64)

    def _features_of(self, configs: Indices) -> _Features:
        parts = [
            np.concatenate([factors[kind][configs[:, place]] for place, factors in enumerate(self._factors)], axis=1)
            for kind in range(3)
        ]
        return _Features(*parts)

    def _covariance(self, one: _Features, other: _Features, choice: _Choice) -> Floats:
        scale = np.array(choice.sizes)[self._axis_of] ** 2
        main = np.asarray((one.main * scale) @ other.main.T, dtype=np.float64)
        return main + choice.pairs**2 * _pairs(one, other) if choice.pairs else main

    def _variance(self, features: _Features) -> Floats:
        scaled = features.main * np.array(self._choice.sizes)[self._axis_of]
        main, alike, squared = (np.square(part).sum(axis=1) for part in (scaled, features.alike, features.squared))
        return np.asarray(main + self._choice.pairs**2 * (alike**2 - squared) / 2)

    def _origin_of(self, read: Readings) -> float:
        # With pinned knobs the rest as written gains something, too: effects are beyond that.
        as_written = (read.indices == self._as_written).all(axis=1)
        return float(read.gains[as_written].mean()) if as_written.any() else 0.0

    def _chosen(self) -> _Choice:
        """The choice under which the readings are most likely, by one part after the other."""
        found, likeliest = _Choice((1.0,) * len(self._tables), PAIRS[0], SCATTERS[1]), self._likeliest()
        turned = np.flatnonzero((self.read.indices != self._as_written).any(axis=0)).tolist()
        for _ in range(SWEEPS):
            before = found
            for place in turned:
                head, tail = found.sizes[:place], found.sizes[place + 1 :]
                found = likeliest([replace(found, sizes=(*head, size, *tail)) for size in SIZES])
            others = itertools.product(PAIRS, SCATTERS)
            found = likeliest([replace(found, pairs=pairs, scatter=scatter) for pairs, scatter in others])
            if found == before:
                break
        return found

    def _likeliest(self) -> Callable[[Sequence[_Choice]], _Choice]:
        """Which of some choices makes the readings, and is itself, most likely; of equal ones the first, on every
        processor.
        """
        first = self._features.first(CHOSEN_BY)
        gains, noise = self.read.gains[:CHOSEN_BY] - self._origin, self.read.noise[:CHOSEN_BY] ** 2
        own = [first.main[:, self._axis_of == place] for place in range(len(self._tables))]
        parts = np.stack([*(each @ each.T for each in own), _pairs(first, first), np.eye(len(gains))])
        readings = np.diag(noise)

        def likeliest(choices: Sequence[_Choice]) -> _Choice:
            sizes = np.array([choice.sizes for choice in choices])
            others = np.array([(choice.pairs, choice.scatter) for choice in choices])
            weights = np.square(np.concatenate([sizes, others], axis=1))
            exact = np.einsum("ij,jkl->ikl", weights, parts)  # not @: threads cost more than such a small product
            roots = np.linalg.cholesky(exact + readings)
            white = np.linalg.solve(roots, np.broadcast_to(gains[:, None], (len(choices), len(gains), 1)))[..., 0]
            logs = -0.5 * np.square(white).sum(axis=1) - np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
            logs -= np.square(np.log2(sizes)).sum(axis=1) / 2
            return choices[int(np.argmax(np.round(logs, 9)))]

        return likeliest

    def _solved(self) -> tuple[Floats, Floats]:
        """The inverse of the readings' covariance, and their weights."""
        exact = self._covariance(self._features, self._features, self._choice)
        scatter = np.diag(self.read.noise**2 + self._choice.scatter**2)
        inverse = np.asarray(np.linalg.inv(exact + scatter), dtype=np.float64)
        return inverse, inverse @ (self.read.gains - self._origin)


def _pairs(one: _Features, other: _Features) -> Floats:
    """How alike each two configs are in pairs of turned values."""
    alike: Floats = one.alike @ other.alike.T
    return np.asarray((alike**2 - one.squared @ other.squared.T) / 2, dtype=np.float64)


def _joined(one: Readings, other: Readings) -> Readings:
    return Readings(
        np.concatenate([one.indices, other.indices]),
        np.concatenate([one.gains, other.gains]),
        np.concatenate([one.noise, other.noise]),
    )


def _tables(axis: Axis) -> tuple[Floats, Floats]:
    """For each two values of the axis, by index: the covariance of their main effects, and how alike they act, in
    [0, 1]. Both are 0 for the script's own value, which has no effect.
    """
    places = np.arange(len(axis.values)) - axis.as_written
    if not axis.knob.ordered:
        same = np.eye(len(places)) * (places != 0)
        return VALUE_EFFECT**2 * same, same
    one, other = places[:, None], places[None, :]
    same_side = one * other > 0
    steps = np.where(same_side, np.minimum(np.abs(one), np.abs(other)), 0).astype(np.float64)
    longest = np.where(one > 0, places.max(), -places.min()).astype(np.float64)
    single = np.arange(len(places) - 1)
    alike = STEPS_ALIKE ** np.abs(single[:, None] - single[None, :]).astype(np.float64)
    sums = np.pad(alike.cumsum(axis=0).cumsum(axis=1), (1, 0))
    main = np.where(same_side, sums[np.abs(one), np.abs(other)], 0.0)
    return STEP_EFFECT**2 * main, steps / np.maximum(longest, 1.0)


def _factor(table: Floats) -> Floats:
    """Rows whose inner products are the table's entries."""
    values, vectors = np.linalg.eigh(table)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def expected_excess(mean: Floats, deviation: Floats, over: float) -> Floats:
    """How far a normal variable is expected to be above ``over``, where it is; 0 elsewhere counted in."""
    standard = (mean - over) / deviation
    below = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in standard])
    return np.asarray((mean - over) * below + deviation * np.exp(-(standard**2) / 2) / math.sqrt(2 * math.pi))
