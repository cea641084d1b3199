"""What PyTorch's XLA devices share: operations are noted down, until the script gives them to PJRT as one graph.

Nothing here does that for it: another graph would be compiled, and what comes behind would be another one, too.
"""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import Any

from .base import Device


class Pjrt(Device):
    """A device that runs behind the script."""

    torch_type = "xla"
    asynchronous = True

    def torch_synchronize(self, torch: ModuleType) -> None:
        """Waits for the graphs that were given to the device, and for none that is still noted down."""
        module: Any = begun()
        if module is not None:
            module._XLAC._xla_wait_device_ops(devices=[])

    def torch_mark(self, torch: ModuleType) -> object | None:
        """The time here: no mark can be put among what the device was given, but by another graph."""
        return time.perf_counter()

    def torch_seconds(self, before: Any, after: Any) -> float:
        return float(after - before)


def begun() -> ModuleType | None:
    """torch_xla, where the script has imported it and used a device: to ask for one is what occupies it."""
    module: Any = sys.modules.get("torch_xla")
    return module if module is not None and module._XLAC._xla_runtime_is_initialized() else None
