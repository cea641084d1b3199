"""The machine's processor. It is always there."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tuner.devices.base import DeviceKind
from tuner.devices.host import host_memory, read_text
from tuner.model import Device

HOST_DEVICES = "host devices"
"""The name under which the environment of a figure says for how many devices JAX took the processor."""
_BY_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


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

    def software(self) -> Mapping[str, str]:
        """For how many devices JAX takes this one, where the environment says so."""
        count = host_devices(os.environ)
        return {HOST_DEVICES: str(count)} if count > 1 else {}


def host_devices(environment: Mapping[str, str]) -> int:
    """For how many devices these variables have JAX take a processor; 1 where they don't say.

    JAX asks its own variable first, and then XLA, whose last flag counts.
    """
    own = environment.get("JAX_NUM_CPU_DEVICES", "")
    flags = _BY_FLAG.findall(environment.get("XLA_FLAGS", ""))
    return max(1, int(own) if own.isdecimal() else int(flags[-1]) if flags else 1)


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
