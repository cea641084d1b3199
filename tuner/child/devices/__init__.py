"""What the device of a trial needs of the framework that trains on it: one file a kind of device."""

from __future__ import annotations

from .base import Device
from .cpu import CpuDevice
from .cuda import CudaDevice
from .tpu import TpuDevice
from .xla import XlaDevice

KINDS: dict[str, type[Device]] = {kind.kind: kind for kind in (CpuDevice, CudaDevice, TpuDevice, XlaDevice)}


def named(label: str) -> Device:
    """The device of a label such as ``cuda:0``; one of an unknown kind is treated as a CPU."""
    return KINDS.get(label.partition(":")[0], CpuDevice)(label)
