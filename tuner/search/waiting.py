"""How far a trial's loop waits for its data, and what another config could gain there at most. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import lru_cache

from tuner.analysis.bottleneck import INPUT_SHARE, Bottleneck
from tuner.analysis.contention import Host, busy_cores
from tuner.analysis.stats import rate_interval
from tuner.devices.present import host_of
from tuner.model import Measurement, Trial
from tuner.space.resolved import ResolvedSpace

WAITING = 0.06
"""A loop that waits less than this share of its time gains nothing worth having from its loader."""
STARVED = 0.9
"""A loop that waits so large a share of its time for its data shows nothing of what computing gains."""
_MOST = 0.99
"""No wait is taken to be longer: a rate is divided by what is left."""

LEAST_WAIT_NOISE = 0.01
"""No share of its time that a loop waits has a smaller standard deviation, however even its blocks: runs differ."""
_UNKNOWN_WAIT_NOISE = 0.1
"""That of one of which too few blocks tell, or some that hardly waited."""


def host_around(space: ResolvedSpace) -> Host | None:
    """The machine around the trials, with the cores of all ranks; None where no device is known."""
    return host_of(space.device, space.host_cores, space.spare_cores) if space.device is not None else None


def sees_wait(trial: Trial) -> bool:
    """Whether anything showed when the trial's loop waits."""
    measurement = _measured(trial)
    return measurement is not None and measurement.data_wait_share is not None


def whole_wait(trial: Trial) -> float:
    """The share of its time in [0, 0.99] that the trial's loop waits for its data; 0 where nothing shows it."""
    measurement = _measured(trial)
    return min(_MOST, measurement.data_wait_share or 0.0) if measurement is not None else 0.0


def wait_noise(trial: Trial) -> float:
    """The standard deviation of the logarithm of the share of its time in which the trial's loop doesn't wait, by its
    blocks: what a rate without the wait is off by beyond the rate itself.
    """
    measurement = _measured(trial)
    blocks = measurement.blocks if measurement is not None else ()
    deviation = _wait_noise_of(tuple(max(0.0, b.wait_s) for b in blocks), tuple(b.seconds for b in blocks))
    return max(LEAST_WAIT_NOISE, deviation) / (1 - whole_wait(trial))


@lru_cache(maxsize=4096)
def _wait_noise_of(waits_s: tuple[float, ...], seconds: tuple[float, ...]) -> float:
    """Of blocks that last so long, of which the loop waits so long each. Each proposal asks for that of all trials."""
    found = rate_interval(waits_s, seconds) if seconds else None
    if found is None or math.isinf(found.high):
        return _UNKNOWN_WAIT_NOISE if any(waits_s) else LEAST_WAIT_NOISE
    return (found.high - found.low) / (2 * 1.96)


def without_wait(trial: Trial, wait: float, cores: int | None, spare_cores: int = 0) -> float:
    """The logarithm of what the trial's loop would gain without the share ``wait`` of its time that it waits.

    ``cores``: of a host that fetches and computes on the same ones, None for another; ``spare_cores`` beside them are
    others'. What keeps them busy while the loop waits doesn't end with its wait: no loop gains more than by the cores
    that are idle, or would be without others.
    """
    most = -math.log1p(-min(_MOST, wait))
    measurement = _measured(trial)
    if cores is None or measurement is None or not measurement.cpu_s_per_sample:
        return most
    return max(0.0, min(most, math.log(cores / busy_cores(measurement, spare_cores))))


def costly_wait(trial: Trial, bottleneck: Bottleneck | None) -> float:
    """``whole_wait`` without what the script as written waits at no cost, while its device computes on."""
    hidden = bottleneck.wait_share if bottleneck is not None and bottleneck.hides_its_wait else None
    return max(0.0, whole_wait(trial) - (hidden or 0.0))


def knows_wait(trial: Trial, bottleneck: Bottleneck | None) -> bool:
    """Whether anything tells when the trial's loop waits: itself, or a probe of the script as written."""
    return sees_wait(trial) or (bottleneck is not None and bottleneck.compute is not None)


def saved_share(trial: Trial, bottleneck: Bottleneck | None, own: Collection[str]) -> float:
    """What a kept batch saved the script as written; 0 where the trial turns an argument of the script's own (``own``),
    and its wait is seen: its loader may be another one.
    """
    if bottleneck is None or (not trial.config.keys().isdisjoint(own) and sees_wait(trial)):
        return 0.0
    return bottleneck.saved_share


def data_costs_time(trial: Trial, bottleneck: Bottleneck | None, own: Collection[str]) -> bool:
    """Whether a loader could bring anything on top of the trial's config: its loop waits for data, a kept batch was
    faster by far, or nothing tells.
    """
    saves = saved_share(trial, bottleneck, own) >= INPUT_SHARE
    return not knows_wait(trial, bottleneck) or saves or costly_wait(trial, bottleneck) >= WAITING


def _measured(trial: Trial) -> Measurement | None:
    return trial.outcome.measurement if trial.outcome is not None else None
