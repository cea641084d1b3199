"""The list of device kinds, and the devices of this machine."""

from __future__ import annotations

from tuner.analysis.contention import Host
from tuner.devices.base import DeviceKind
from tuner.devices.cpu import CpuKind
from tuner.devices.cuda import CudaKind
from tuner.devices.tpu import TpuKind
from tuner.devices.xla import XlaKind
from tuner.errors import DeviceError
from tuner.model import Device

AUTO = "auto"
KINDS: tuple[DeviceKind, ...] = (CudaKind(), TpuKind(), CpuKind(), XlaKind())
"""Every kind, in the order in which ``auto`` looks for a device. What comes behind the CPU has to be asked for."""


def devices() -> list[Device]:
    """Every device that a study could run on here, in the order in which ``auto`` picks them."""
    return [device for kind in KINDS for device in kind.find()]


def kind_of(device: Device) -> DeviceKind:
    """The device's kind. Raises ``DeviceError`` for one that this version doesn't know."""
    kind = _kind_named(device.kind)
    if kind is None:
        raise DeviceError(f"unknown kind of device {device.kind!r}", hint=f"known: {spellings()}")
    return kind


def host_of(device: Device, cores: int, spare_cores: int = 0) -> Host:
    """The machine around measurements on the device. Raises as ``kind_of``."""
    kind = kind_of(device)
    return Host(cores, kind.foreign_share, spare_cores, feeds=not kind.is_host)


def resolve_device(text: str) -> Device:
    """The device that ``auto`` or a label such as ``cpu`` or ``cuda:1`` names. Raises ``DeviceError``."""
    here = devices()
    labels = ", ".join(device.label for device in here)
    if text == AUTO:
        return here[0]
    name, colon, number = text.partition(":")
    kind = _kind_named(name)
    if kind is None or (colon and not (kind.numbered and number.isascii() and number.isdigit())):
        raise DeviceError(f"unknown device {text!r}", hint=f"{AUTO}, {spellings()}; here: {labels}")
    for device in here:
        if device.kind == name and (not colon or device.index == int(number)):
            return device
    lack = kind.why_absent()
    why = f"{lack.text}; " if lack is not None else ""
    raise DeviceError(f"there is no {text} on this machine", hint=f"{why}devices here: {labels}")


def spellings() -> str:
    """How devices are written on the command line, as in "cpu, cuda, cuda:1, tpu or xla"."""
    ways = sorted(way for kind in KINDS for way in (kind.name, *([f"{kind.name}:1"] if kind.numbered else [])))
    return f"{', '.join(ways[:-1])} or {ways[-1]}"


def _kind_named(name: str) -> DeviceKind | None:
    return next((kind for kind in KINDS if kind.name == name), None)
