"""When a measurement says more of the machine's other work than of the config. Pure."""

from __future__ import annotations

from tuner.model import Device, Outcome

FOREIGN_SHARE = 0.1
"""Of the machine's cores. One busy core beside two threads made one thread look four times faster than two."""
FOREIGN_SHARE_BESIDE_A_DEVICE = 0.5
"""The host only feeds an accelerator: it takes more to be felt there."""
OVERWHELMING = 2.5
"""So many times what is allowed, and a run in the finals proves nothing: load of that size turns conclusions around."""
MOVED = 1.1
"""A baseline that moved by more than this ratio between two anchors says that the machine changed in between."""


def allowed_foreign_cpus(device: Device, cores: int, spare_cores: int = 0) -> float:
    """Cores that other processes may use beside a measurement.

    ``spare_cores`` are those that a quota keeps from us: whoever uses them takes nothing from us.
    """
    return spare_cores + cores * (FOREIGN_SHARE if device.kind == "cpu" else FOREIGN_SHARE_BESIDE_A_DEVICE)


def contamination(outcome: Outcome, device: Device, cores: int, spare_cores: int = 0) -> str:
    """What disturbed the measurement, in a few words; "" where nothing much did."""
    measurement = outcome.measurement
    if measurement is None or not outcome.complete:
        return ""
    if measurement.foreign_cpus <= allowed_foreign_cpus(device, cores, spare_cores):
        return ""
    return f"other processes used {measurement.foreign_cpus:.1f} of {cores + spare_cores} cores"
