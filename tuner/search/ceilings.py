"""What a config could gain at most, by how far the loops of trials like it waited for their data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.search.tried import Floats, Indices, Tried
from tuner.space.resolve import Axis

LEEWAY = 0.02
"""By so much, as a logarithm, a gain may exceed its ceiling: rates and waits are measured with an error."""
_MOST_WAIT = 0.99


def ceilings(configs: Indices, tried: Tried, axes: Sequence[Axis]) -> Floats:
    """The logarithm of the most that each config (a row of indices) could gain by what waits the trials showed.

    One that differs from a trial in loader knobs only can save all of its wait at most; one that differs in compute
    knobs only can't but wait as long. Infinite where no trial is so close.
    """
    loader = np.array([axis.knob.loader for axis in axes], dtype=bool)
    computes = np.array([not (axis.knob.loader or axis.knob.own) for axis in axes], dtype=bool)
    differ = configs[:, None, :] != tried.indices[None, :, :]
    waits = np.clip(tried.waits, 0.0, _MOST_WAIT)
    without_wait = tried.gains - np.log1p(-waits) + LEEWAY
    only_wait = tried.gains - np.log(np.maximum(waits, 1e-6)) + LEEWAY
    by_loader = np.where(~differ[:, :, ~loader].any(axis=2) & ~np.isnan(waits), without_wait, np.inf)
    by_computing = np.where(~differ[:, :, ~computes].any(axis=2) & ~np.isnan(waits), only_wait, np.inf)
    return np.asarray(np.minimum(by_loader, by_computing).min(axis=1, initial=np.inf))
