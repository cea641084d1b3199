"""What rotations read of configs, as rows beside those of trials: rougher ones, for a rotation screens. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from tuner.search.rotation import Ranking, bias_of
from tuner.search.tried import LEAST_NOISE, Readings
from tuner.space.resolve import ResolvedSpace

BIAS_IS = 2.0
"""What a rotation's ratio may be off by is so many standard deviations."""


def ranked_readings(space: ResolvedSpace, ranking: Ranking, loaders: Collection[str], *, calm: bool) -> Readings:
    """A row for each config that is ranked and lies on the axes.

    Its noise is that of its turns, and what ratios of a rotation may be off by against those of fresh processes. Where
    the turns weren't ``calm`` (``was_calm``) that is as much as nobody has measured it to be at most.
    """
    rows: list[tuple[list[int], float, float]] = []
    for config, rotated in ranking.items():
        gain = rotated.gain
        if gain is None or not 0 < gain.low <= gain.high < math.inf:
            continue
        try:
            places = space.indices_of(config)
        except ValueError:
            continue
        if space.config_of(places) != config:
            continue
        bias = math.log(bias_of(config, loaders, calm=calm)) / BIAS_IS
        noise = max(LEAST_NOISE, math.log(gain.high / gain.low) / (2 * 1.96))
        rows.append((list(places.values()), math.log(gain.ratio), math.hypot(noise, bias)))
    return Readings(
        np.array([indices for indices, _, _ in rows], dtype=np.int64).reshape(len(rows), len(space.axes)),
        np.array([gain for _, gain, _ in rows], dtype=np.float64),
        np.array([noise for _, _, noise in rows], dtype=np.float64),
    )
