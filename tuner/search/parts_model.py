"""What a loop gains as a whole that computes, and waits for what makes its batches beside it. NumPy only.

Such a loop is as fast as the slower of its two parts, and no sum over knobs says so: bf16 and a larger batch bring
nothing while the loader holds the loop up, and all of what they are worth once it doesn't. Each trial tells of both
parts by its rate and the share of its time that it waits: how fast its loop would be without any wait; and, where it
waits for long beside idle cores, how fast its batches are made, else that they are made no slower than it takes them.
"""

from __future__ import annotations

import math

import numpy as np

from tuner.analysis.bottleneck import INPUT_SHARE
from tuner.search.gain_model import GainModel
from tuner.search.tried import Bools, Floats, Indices, Readings, Tried
from tuner.search.waiting import wait_noise, without_wait

UNSEEN = 0.1
"""The standard deviation of what a loop whose wait nothing shows may gain without it, as a logarithm."""
AT_LEAST = 0.1
"""Batches that keep up with a loop are made faster than it takes them by so much, as a logarithm, give or take as much
again, where nothing else says how fast.
"""
HELD_UP = -math.log1p(-INPUT_SHARE)
"""A loop that would gain so much without its wait, as a logarithm, is as fast as its batches are made."""
ROUNDS = 2
"""So often the loader's part is fitted again with what it fell short of."""


class PartsModel:
    """``gains``, fitted to what was ``tried``, and the same model of each part.

    ``cores``, ``spare``: as for ``without_wait``. ``are_told``: whether waits say anything of the gains, as of rates.
    """

    def __init__(
        self, gains: GainModel, tried: Tried, cores: int | None, spare: int = 0, *, are_told: bool = True
    ) -> None:  # fmt: skip
        self._compute = self._loader = gains
        waits = zip(tried.trials, _known(tried.waits), strict=True)
        saved = [without_wait(one, wait, cores, spare) for one, wait in waits]
        read, beside = gains.read, len(gains.read) - len(tried)
        saves = np.concatenate([np.zeros(beside), np.array(saved)])
        held_up = saves >= HELD_UP
        self.tells = are_told and bool(held_up.any())
        """Whether any trial was held up by its loader: else both parts are the whole."""
        if self.tells:
            off = np.array([wait_noise(trial) for trial in tried.trials])
            off = np.concatenate([np.full(beside, UNSEEN), np.where(np.isnan(tried.waits), UNSEEN, off)])
            self._compute = gains.of_others(Readings(read.indices, read.gains + saves, np.hypot(read.noise, off)))
            self._loader = _loader(gains, read, held_up)

    def predict(self, configs: Indices) -> tuple[Floats, Floats]:
        """The mean and the standard deviation of the logarithm of each config's gain."""
        of_compute = self._compute.predict(configs)
        return _slower(*of_compute, *self._loader.predict(configs)) if self.tells else of_compute

    def means(self, configs: Indices) -> Floats:
        """About the means of the same: what the spread of either part takes of them is left out."""
        of_compute = self._compute.means(configs)
        return np.minimum(of_compute, self._loader.means(configs)) if self.tells else of_compute

    def without_wait(self, configs: Indices) -> tuple[Floats, Floats]:
        """The same if none of their loops waited."""
        return self._compute.predict(configs)

    def draw(self, configs: Indices, count: int, chance: np.random.Generator) -> Floats:
        """So many joint draws (rows) of the logarithms of the configs' gains (columns)."""
        drawn = self._compute.draw(configs, count, chance)
        return np.minimum(drawn, self._loader.draw(configs, count, chance)) if self.tells else drawn


def _loader(gains: GainModel, read: Readings, held_up: Bools) -> GainModel:
    """How fast batches are made, by loops that wait for them; where others show that it falls short, by these, too."""
    known, made, noise = held_up.copy(), read.gains.copy(), read.noise.copy()
    origin = float(read.gains[known].mean())
    model = gains.of_others(Readings(read.indices[known], made[known], noise[known]), origin)
    for _ in range(ROUNDS):
        short = ~known & (model.means(read.indices) < read.gains + AT_LEAST)
        if not short.any():
            break
        made[short] += AT_LEAST
        noise[short] = np.hypot(noise[short], AT_LEAST)
        known |= short
        model = model.of_others(Readings(read.indices[known], made[known], noise[known]), origin, anew=False)
    return model


def _known(waits: Floats) -> list[float]:
    """Those that are seen, else none."""
    return [0.0 if math.isnan(wait) else wait for wait in waits.tolist()]


def _slower(mean: Floats, deviation: Floats, other: Floats, other_deviation: Floats) -> tuple[Floats, Floats]:
    """The mean and the standard deviation of the smaller of two independent normal variables (Clark, The Greatest of a
    Finite Set of Random Variables, Operations Research 9, 1961).
    """
    apart = np.hypot(deviation, other_deviation)
    standard = (other - mean) / apart
    share = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in standard])
    density = np.exp(-(standard**2) / 2) / math.sqrt(2 * math.pi)
    smaller = mean * share + other * (1 - share) - apart * density
    squared = (mean**2 + deviation**2) * share + (other**2 + other_deviation**2) * (1 - share)
    squared -= (mean + other) * apart * density
    return smaller, np.sqrt(np.maximum(squared - smaller**2, 1e-12))
