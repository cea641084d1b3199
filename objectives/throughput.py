"""Samples per second of the whole training loop, data wait included. Declaration only."""

from __future__ import annotations

from tuner.model import Measurement
from tuner.objective import Objective


def samples_per_s(measurement: Measurement) -> float:
    """Samples divided by wall time over the steady window."""
    return measurement.rate


OBJECTIVE = Objective(name="throughput", unit="samples/s", maximize=True, score=samples_per_s)
