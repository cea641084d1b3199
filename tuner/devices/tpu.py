"""TPU chips, found on the PCI bus as libtpu finds them: only a framework's runtime could say more, and occupies them.

Nothing in this file was ever tried on a TPU.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tuner.devices.base import DeviceKind
from tuner.devices.frameworks import TORCH_XLA_ON_TPU, Framework, Lack, is_installed, lack_for_tpu
from tuner.devices.host import read_text
from tuner.model import Device

BUS = Path("/sys/bus/pci/devices")
LOCK = Path("/tmp/libtpu_lockfile")
"""libtpu holds it locked for as long as its process uses the chips; another one fails at its start."""
VENDOR = "0x1ae0"
CHIPS = {
    "0x0027": "TPU v2 or v3", "0x005e": "TPU v4", "0x0062": "TPU v5p", "0x0063": "TPU v5e", "0x006f": "TPU v6e",
    "0x0076": "TPU 7x",
}  # fmt: skip
"""PCI device ids, as in torch_xla 2.9 (torch_xla/_internal/tpu.py) → what they are."""
RUNTIMES = ("torch_xla", "jax", "tensorflow")


class TpuKind(DeviceKind):
    """The TPU of this machine as one device: its first chip, since a study tunes one process on one device."""

    name = "tpu"
    rotates = False  # each config is other graphs; TensorFlow's strategies aren't switched

    def find(self) -> list[Device]:
        """The TPU, where its chips are on the bus and a framework that can use them is installed."""
        found = chips()
        if not found or not any(map(is_installed, RUNTIMES)):
            return []
        name = os.environ.get("TPU_ACCELERATOR_TYPE") or CHIPS[found[0]]
        return [Device(self.name, 0, name, name, 0)]

    def why_absent(self) -> Lack | None:
        """No chip on the bus, or nothing installed that could use it; the way to XLA without a TPU."""
        if chips():
            what = "a TPU is here, but neither torch_xla, JAX nor TensorFlow is installed in this environment"
            return Lack(what, TORCH_XLA_ON_TPU)
        instead = "--device xla runs a torch_xla script on this processor, by PJRT's CPU client"
        once = "" if is_installed("torch_xla") else ", once torch_xla is installed"
        return Lack(f"no TPU is on the PCI bus; {instead}{once}")

    def lack(self, framework: Framework) -> Lack | None:
        """torch_xla, or libtpu."""
        return lack_for_tpu(framework)

    def environment(self, device: Device, *, alone: bool) -> Mapping[str, str]:
        """One process on one chip, as torch_xla and JAX read it. A rank of several has its own by their launcher."""
        if not alone:
            return {}
        one = "1,1,1"
        return {
            "PJRT_DEVICE": "TPU", "TPU_VISIBLE_CHIPS": "0", "TPU_PROCESS_BOUNDS": one,
            "TPU_CHIPS_PER_PROCESS_BOUNDS": one,
        }  # fmt: skip

    def compile_cache(self, folder: Path) -> Mapping[str, str]:
        """torch_xla's; JAX's is set whatever the device, and of TensorFlow's nothing is."""
        return {"XLA_PERSISTENT_CACHE_PATH": str(folder / "xla")}

    def wait_until_clean(self, device: Device, used_before: int | None, timeout_s: float = 10.0) -> bool:
        """Waits until no process holds libtpu's lock; False when one still does after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while _is_held(LOCK):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        return True


def chips() -> list[str]:
    """PCI device ids of the TPU chips on this machine's bus. Only read: no driver is opened."""
    found = []
    for vendor in sorted(BUS.glob("*/vendor")):
        if read_text(vendor).strip() == VENDOR:
            found.append(read_text(vendor.with_name("device")).strip())
    return [chip for chip in found if chip in CHIPS]


_FLOCK = "hhqqi"
"""C's ``struct flock``: type, whence, start, length, pid."""


def _is_held(lock: Path) -> bool:
    """Whether another process holds a POSIX lock on the file, as libtpu does; False where that can't be asked.

    It is asked for and never taken: a runtime that starts at that moment would fail.
    """
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with suppress(OSError), open(lock, "rb") as file:
        found = fcntl.fcntl(file, fcntl.F_GETLK, wanted)
        return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK)
    return False
