"""What a config could gain at most, by how far the loops of trials like it waited for their data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.search.tried import Floats, Indices, Tried
from tuner.space.resolve import Axis

LEEWAY = 0.02
"""By so much, as a logarithm, a gain may exceed its ceiling: waits are measured with an error."""
SURE = 1.64
"""And by so many standard deviations of the gain of the trial that it is told by."""
_MOST_WAIT = 0.99


def ceilings(configs: Indices, tried: Tried, axes: Sequence[Axis], *, on_host: bool = False) -> Floats:
    """The logarithm of the most that each config (a row of indices) could gain by what waits the trials showed.

    One that differs from a trial in loader knobs only can save all of its wait at most; one that differs in compute
    knobs only can't but wait as long. Infinite where no trial is so close. ``on_host``: cores that fetch the data
    compute as well, so that fewer of the one's threads or processes leave more to the other, whatever the wait.

    A trial bounds others as far as its own noise goes, and by so much more as another one exceeded its bound.
    """
    bounds = _bounds(configs, tried, axes, on_host=on_host)
    among_tried = _bounds(tried.indices, tried, axes, on_host=on_host)
    exceeded = (tried.gains[:, None] - among_tried).max(axis=0, initial=0.0)
    return np.asarray((bounds + exceeded[None, :]).min(axis=1, initial=np.inf))


def _bounds(configs: Indices, tried: Tried, axes: Sequence[Axis], *, on_host: bool) -> Floats:
    """That of each config (rows) by each trial (columns)."""
    shared = [on_host and axis.knob.on_cores for axis in axes]
    loader = np.array([a.knob.loader and not s for a, s in zip(axes, shared, strict=True)], dtype=bool)
    computes = np.array(
        [not (a.knob.loader or a.knob.own or s) for a, s in zip(axes, shared, strict=True)], dtype=bool
    )
    differ = configs[:, None, :] != tried.indices[None, :, :]
    waits = np.clip(tried.waits, 0.0, _MOST_WAIT)
    likely = tried.gains + SURE * tried.noise + LEEWAY
    without_wait = likely - np.log1p(-waits)
    only_wait = likely - np.log(np.maximum(waits, 1e-6))
    by_loader = np.where(~differ[:, :, ~loader].any(axis=2) & ~np.isnan(waits), without_wait, np.inf)
    by_computing = np.where(~differ[:, :, ~computes].any(axis=2) & ~np.isnan(waits), only_wait, np.inf)
    return np.asarray(np.minimum(by_loader, by_computing))
