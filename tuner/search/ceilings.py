"""What a config could gain at most, by how far the loops of trials like it waited for their data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tuner.search.tried import Bools, Floats, Indices, Tried
from tuner.space.resolved import Axis

LEEWAY = 0.02
"""By so much, as a logarithm, a gain may exceed its ceiling: waits are measured with an error."""
SURE = 1.64
"""And by so many standard deviations of the gain of the trial that it is told by."""
_MOST_WAIT = 0.99

Keys = npt.NDArray[np.int64]


def ceilings(configs: Indices, tried: Tried, axes: Sequence[Axis], *, on_host: bool = False) -> Floats:
    """The logarithm of the most that each config (a row of indices) could gain by what waits the trials showed.

    One that differs from a trial in loader knobs only can save all of its wait at most; one that differs in compute
    knobs only can't but wait as long. Infinite where no trial is so close. ``on_host``: cores that fetch the data
    compute as well, so that fewer of the one's threads or processes leave more to the other, whatever the wait. Nor
    does it bound what makes copies to the device faster (``beyond_wait``).

    A trial bounds others as far as its own noise goes, and by so much more as another one exceeded its bound.
    """
    shared = [(on_host and axis.knob.on_cores) or axis.knob.beyond_wait for axis in axes]
    by_loader = [axis.knob.loader and not both for axis, both in zip(axes, shared, strict=True)]
    by_computing = [
        not (axis.knob.loader or axis.knob.own or both) for axis, both in zip(axes, shared, strict=True)
    ]
    waits = np.clip(tried.waits, 0.0, _MOST_WAIT)
    likely = tried.gains + SURE * tried.noise + LEEWAY
    # By which knobs alone a config may differ from a trial, and what then bounds it.
    kinds = [
        (*_keys_but(by_loader, configs, tried.indices), likely - np.log1p(-waits)),
        (*_keys_but(by_computing, configs, tried.indices), likely - np.log(np.maximum(waits, 1e-6))),
    ]
    kinds = [(own, theirs, np.where(np.isnan(waits), np.inf, bounds)) for own, theirs, bounds in kinds]
    exceeded = np.zeros(len(tried.gains))
    for _, theirs, bounds in kinds:
        beyond = np.where(theirs[:, None] == theirs[None, :], tried.gains[:, None] - bounds[None, :], 0.0)
        exceeded = np.maximum(exceeded, beyond.max(axis=0, initial=0.0))
    lowest = [_lowest(own, theirs, bounds + exceeded) for own, theirs, bounds in kinds]
    return np.asarray(np.minimum(*lowest))


class LoaderRows:
    """Configs beside one whose loader is as written: ``best``, a row of indices into ``axes``."""

    def __init__(self, axes: Sequence[Axis], best: Indices, *, on_host: bool) -> None:
        self._best = best
        self._loader = np.array([axis.knob.loader and not axis.knob.beyond_wait for axis in axes], dtype=bool)
        self._on_cores = np.array([on_host and axis.knob.loader and axis.knob.on_cores for axis in axes], dtype=bool)

    def without(self, configs: Indices) -> Indices:
        """Each of them with the loader of ``best``, but for what gains beyond the wait."""
        return np.where(self._loader, self._best, configs)

    def turned_up(self, configs: Indices) -> Bools:
        """Whether it has another loader than ``best``, and none that leaves more of the cores to computing."""
        fewer = np.any((configs < self._best) & self._on_cores, axis=1)
        return np.asarray(np.any((configs != self._best) & self._loader, axis=1) & ~fewer)


def with_all_of_the_wait(gains: Floats, wait: float, faster: Floats) -> Floats:
    """The logarithms of the gains without a wait that takes the share ``wait`` of its time in a loop that is slower by
    the logarithms ``faster``: the samples wait as long.
    """
    return np.asarray(gains - np.log1p(-np.clip(wait * np.exp(faster), 0.0, _MOST_WAIT)))


def _keys_but(left_out: Sequence[bool], configs: Indices, trials: Indices) -> tuple[Keys, Keys]:
    """A number of each config and of each trial: the same where they differ in the axes that are left out alone."""
    kept = ~np.array(left_out, dtype=bool)
    both = np.concatenate((configs, trials))[:, kept]
    keys = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    return keys[: len(configs)], keys[len(configs) :]


def _lowest(keys: Keys, of_trials: Keys, bounds: Floats) -> Floats:
    """The lowest bound by a trial of the same key, for each of the keys."""
    lowest = np.full(max(keys.max(initial=-1), of_trials.max(initial=-1)) + 1, np.inf)
    np.minimum.at(lowest, of_trials, bounds)
    return np.asarray(lowest[keys])
