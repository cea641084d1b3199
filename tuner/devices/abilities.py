"""What the devices of this machine can do."""

from __future__ import annotations

from tuner.analysis.resources import DEVICE, HOST
from tuner.devices import present
from tuner.devices.energy import why_no_host_energy
from tuner.model import Device


def energy_unknown(device: Device) -> dict[str, str]:
    """Of the host and the device, why nothing is known of its energy; nothing of what is counted."""
    reasons = {HOST: why_no_host_energy(), DEVICE: present.kind_of(device).why_no_energy(device)}
    return {part: why for part, why in reasons.items() if why}
