"""What the devices of this machine can do, and what is missing, each with the command that mends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.analysis.resources import DEVICE, HOST
from tuner.devices import present
from tuner.devices.energy import why_no_host_energy
from tuner.devices.frameworks import Framework, Lack, installed
from tuner.model import Device

NO_FRAMEWORK = Lack("no framework that trains is installed in this environment", "pip install torch")
"""Or another one: this is the one that runs on every kind of device."""


@dataclass(frozen=True)
class Ability:
    """A device, the frameworks that compute on it here, and of the host and the device why no energy is counted.

    ``energy_unknown`` says nothing of what is counted.
    """

    device: Device
    frameworks: tuple[Framework, ...]
    energy_unknown: Mapping[str, str]


@dataclass(frozen=True)
class Missing:
    """What keeps a kind of device, or ``every`` one, from being used, or from being used by a framework."""

    kind: str
    lack: Lack


EVERY = "every"


def energy_unknown(device: Device) -> dict[str, str]:
    """Of the host and the device, why nothing is known of its energy; nothing of what is counted."""
    reasons = {HOST: why_no_host_energy(), DEVICE: present.kind_of(device).why_no_energy(device)}
    return {part: why for part, why in reasons.items() if why}


def abilities() -> list[Ability]:
    """The devices of this machine, in the order in which ``auto`` picks them."""
    frameworks = installed()
    return [
        Ability(device, tuple(each for each in frameworks if _computes(each, device)), energy_unknown(device))
        for device in present.devices()
    ]


def _computes(framework: Framework, device: Device) -> bool:
    kind = present.kind_of(device)
    return framework.name in kind.frameworks and kind.lack(framework) is None


def missing(found: Sequence[Ability]) -> list[Missing]:
    """What is missing beside ``found``: of kinds that are here what frameworks lack, and why others aren't here."""
    frameworks, here = installed(), {ability.device.kind for ability in found}
    lacks = [] if frameworks else [Missing(EVERY, NO_FRAMEWORK)]
    for kind in present.KINDS:
        if kind.name in here:
            of_kind = [kind.lack(each) for each in frameworks if each.name in kind.frameworks]
        else:
            of_kind = [kind.why_absent()]
        lacks += [Missing(kind.name, lack) for lack in of_kind if lack is not None]
    return lacks
