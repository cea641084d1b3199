"""XLA's own client for processors (PJRT's "CPU"): what a script for TPUs does, on a machine that has none.

It traces, compiles and runs as on a TPU, and is as fast as this processor: its rates say nothing of a TPU's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tuner.devices.base import DeviceKind
from tuner.devices.cpu import cpu_device
from tuner.devices.frameworks import TORCH, TORCH_XLA, Lack, beside_this_torch, is_installed
from tuner.model import Device

CLIENT = "PJRT CPU client"
"""In the name of the device, so that everything that names it says what it was."""


class XlaKind(DeviceKind):
    """The host as an XLA device: there where torch_xla is, and never picked by itself."""

    name = "xla"
    is_host = True
    takes_turns = True
    rotates = False  # each config is other graphs
    frameworks = (TORCH,)

    def find(self) -> list[Device]:
        """One device, whose name begins with the client's."""
        if not has_torch_xla():
            return []
        host = cpu_device()
        name = f"{CLIENT} on {host.name}"
        return [Device(self.name, 0, name, name, host.memory_bytes)]

    def why_absent(self) -> Lack | None:
        """torch_xla is missing: nothing else can be."""
        return Lack(f"torch_xla isn't installed in this environment{beside_this_torch()}", TORCH_XLA)

    def environment(self, device: Device, *, alone: bool) -> Mapping[str, str]:
        """The client of the processor, whatever chips the machine has, and no CUDA card."""
        return {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1", "CUDA_VISIBLE_DEVICES": ""}

    def compile_cache(self, folder: Path) -> Mapping[str, str]:
        """None: this client writes one, and can't read it again ("Deserializing … not supported", torch_xla 2.9)."""
        return {"XLA_PERSISTENT_CACHE_PATH": ""}


def has_torch_xla() -> bool:
    """Whether PyTorch's XLA devices are installed. Nothing is imported: that might occupy a chip."""
    return is_installed("torch_xla")
