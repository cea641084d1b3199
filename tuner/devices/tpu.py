"""A TPU, which only a framework's runtime can ask for its name and memory, and asking would occupy it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from tuner.devices.base import DeviceKind
from tuner.model import Device


class TpuKind(DeviceKind):
    """The TPU chips of this machine as one device."""

    name = "tpu"

    def find(self) -> list[Device]:
        """The TPU, where its device files are there and a library that can use them is installed."""
        accelerators = sorted(Path("/dev").glob("accel[0-9]*"))
        vfio = list(Path("/dev/vfio").glob("[0-9]*")) if Path("/dev/vfio").is_dir() else []
        if not (accelerators or vfio) or importlib.util.find_spec("torch_xla") is None:
            return []
        name = os.environ.get("TPU_ACCELERATOR_TYPE", "TPU")
        return [Device(self.name, 0, name, name, 0)]
