"""Forecasts a config's peak memory from trials of smaller batches, so that the search needn't run out of it. Pure.

What grows with the batch grows linearly (activations, and the batches that workers hold); the rest is a constant. Of a
batch that is far from those that it goes through a line tells little: its standard error there counts (Draper and
Smith, Applied Regression Analysis, 1998, section 1.4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tuner.model import Trial, Value, same_value
from tuner.space.resolved import ResolvedSpace

BATCH = "batch_size"
NOISE = 0.03
"""The standard deviation of a peak, as a share of it, from one run of a config to another."""
SURE = 1.64
"""A config is forecast to break a limit where it does by so many standard errors."""


@dataclass(frozen=True)
class MemoryLimits:
    """Bytes that a config may take of the device and of the host; None is unbounded."""

    device_bytes: int | None = None
    host_bytes: int | None = None


@dataclass(frozen=True)
class Forecast:
    """Bytes that a config will take at its peak; of the device None where nothing tells. ``device_error`` and
    ``host_error`` are how far these may be off (standard errors).
    """

    device_bytes: float | None
    host_bytes: float
    device_error: float = 0.0
    host_error: float = 0.0

    def exceeds(self, limits: MemoryLimits) -> bool:
        """Whether it is surely more than what is allowed: what nothing tells well is to be found out."""
        device, host = limits.device_bytes, limits.host_bytes
        least_device = None if self.device_bytes is None else self.device_bytes - SURE * self.device_error
        too_much_device = least_device is not None and device is not None and least_device > device
        return too_much_device or (host is not None and self.host_bytes - SURE * self.host_error > host)


class Forecasts:
    """From complete trials that differ from a config only in a smaller batch."""

    def __init__(self, space: ResolvedSpace, trials: Iterable[Trial]) -> None:
        self._space = space
        measured = [(space.complete(each.config), m) for each in trials if (m := each.measurement) is not None]
        self._measured = [(own, complete, m) for complete, m in measured if isinstance(own := complete.get(BATCH), int)]

    def of(self, config: Mapping[str, Value]) -> Forecast | None:
        """The config's peak; None with fewer than two such trials of different batches."""
        wanted = self._space.complete(config)
        size = wanted.get(BATCH)
        if not isinstance(size, int):
            return None
        points = [(own, m) for own, complete, m in self._measured if own < size and self._alike(wanted, complete)]
        if len({batch for batch, _ in points}) < 2:
            return None
        on_device = [(batch, float(m.peak_device_bytes)) for batch, m in points if m.peak_device_bytes is not None]
        device = _line_at(size, on_device) if len({batch for batch, _ in on_device}) > 1 else None
        host_bytes, host_error = _line_at(size, [(batch, float(m.peak_host_bytes)) for batch, m in points])
        device_bytes, device_error = device if device is not None else (None, 0.0)
        return Forecast(device_bytes, host_bytes, device_error, host_error)

    def _alike(self, one: Mapping[str, Value], other: Mapping[str, Value]) -> bool:
        """Whether two configs are the same but for the batch and what follows from it."""
        space = self._space
        follows = {BATCH, *space.space.derive(one, space.knowledge), *space.space.derive(other, space.knowledge)}
        return all(same_value(one.get(name), other.get(name)) for name in {*one, *other} - follows)


def _line_at(size: int, points: list[tuple[int, float]]) -> tuple[float, float]:
    """The least-squares line at ``size``, and its standard error there; memory never shrinks as the batch grows."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    squares = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / squares
    error = NOISE * mean_y * math.sqrt(1 / len(points) + (size - mean_x) ** 2 / squares)
    return mean_y + max(0.0, slope) * (size - mean_x), error
