"""Which larger effective batch is likely to reach a loss soonest: its gain times what it is likely to learn. Pure.

With B samples in a step a training needs 1 + B / N times as many samples as with very small steps (McCandlish et al.,
An Empirical Model of Large-Batch Training, 2018). N, the noise scale, is the script's own: a screen of one batch tells.
"""

from __future__ import annotations

import math

USUAL_NOISE = 8.0
"""The noise scale before any screen, in batches as written. No figure of ours: scripts are written with batches below
theirs, and it only says which larger batch is looked at first."""


def likely_efficiency(factor: float, noise: float) -> float:
    """The share of the samples as from which ``factor`` times the batch learns; ``noise`` is in batches as written."""
    return 1.0 if math.isinf(noise) else (1 + 1 / noise) / (1 + factor / noise)


def noise_of(factor: float, efficiency: float) -> float:
    """The noise scale at which ``factor`` times the batch (above 1) has this efficiency: the inverse of that.

    Infinite where it learns no less from each sample. Where it learns less than any model says, no more from a larger
    step than from a small one, it is as small as makes no difference.
    """
    if efficiency >= 1:
        return math.inf
    return max((efficiency * factor - 1) / (1 - efficiency), 1e-6)
