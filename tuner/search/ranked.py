"""What rotations read of configs, as rows beside those of trials: rougher ones, for a rotation screens. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from tuner.search.rotation import Ranking, bias_of
from tuner.search.tried import Readings, log_deviation
from tuner.space.resolved import ResolvedSpace

BIAS_IS = 2.0
"""What a rotation's ratio may be off by is so many standard deviations."""


def ranked_readings(space: ResolvedSpace, ranking: Ranking, loaders: Collection[str], *, calm: bool) -> Readings:
    """A row for each config that is ranked and lies on the axes.

    Its noise is that of its turns, and what ratios of a rotation may be off by against those of fresh processes; where
    not ``calm`` (``was_calm``), that is as much as nobody has measured it to be at most. Configs that share a value
    are off together, since one process read them: all of them say no more than one would. None where ratios leave out
    how long the loop waits for its data: nobody knows what of such a gain is left in a whole loop.
    """
    whole = {config: each.gain for config, each in ranking.items() if each.gain is not None and not each.without_wait}
    noises = {config: log_deviation(gain.low, gain.high) for config, gain in whole.items()}
    read = [config for config, noise in noises.items() if noise is not None]
    rows: list[tuple[tuple[int, ...], float, float]] = []
    for config in read:
        places, noise = space.row_of(config), noises[config]
        if places is not None and noise is not None:
            together = sum(not set(config.items()).isdisjoint(other.items()) for other in read)
            bias = math.log(bias_of(config, loaders, calm=calm)) / BIAS_IS * math.sqrt(together)
            rows.append((places, math.log(whole[config].ratio), math.hypot(noise, bias)))
    return Readings(
        np.array([indices for indices, _, _ in rows], dtype=np.int64).reshape(len(rows), len(space.axes)),
        np.array([gain for _, gain, _ in rows], dtype=np.float64),
        np.array([noise for _, _, noise in rows], dtype=np.float64),
    )
