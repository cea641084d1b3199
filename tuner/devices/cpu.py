"""The machine's processor. It is always there."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from tuner.devices.base import DeviceKind
from tuner.devices.host import host_memory, read_text
from tuner.model import Device


class CpuKind(DeviceKind):
    """The host as the device that computes. There is one, whatever its model is called."""

    name = "cpu"
    is_host = True
    takes_turns = True

    def find(self) -> list[Device]:
        """The one processor."""
        return [cpu_device()]

    def environment(self, device: Device, *, alone: bool) -> Mapping[str, str]:
        """Hides every CUDA card, which a framework would take by itself."""
        return {"CUDA_VISIBLE_DEVICES": ""}


def cpu_device() -> Device:
    """The machine's processor, with the memory that this process may use."""
    name = _model_name()
    return Device(CpuKind.name, 0, name, name, host_memory()[0])


def _model_name() -> str:
    for line in read_text(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "Hardware") and value.strip():
            return " ".join(value.split())
    return platform.processor() or platform.machine() or sys.platform
