"""The host's processor. It works at once: nothing is waited for, and its memory is the process's own.

fp16 isn't offered: it is emulated there, and a convolution was seen to take 60 times as long.
"""

from __future__ import annotations

from types import ModuleType

from . import settings
from .base import Device, Rounding


class CpuDevice(Device):
    """Also stands in for a kind of device that nobody knows."""

    kind = "cpu"
    torch_type = "cpu"
    xla_runs_in_threads = True

    def torch_rounding(self, torch: ModuleType) -> Rounding:
        """oneDNN rounds where it was asked to and the processor can; whether this one can isn't asked."""
        onednn = torch.backends.mkldnn
        return Rounding(
            matmul=settings.rounds(
                getattr(onednn, "matmul", None), lambda: torch.get_float32_matmul_precision() == "medium"
            ),
            convolution=settings.rounds(getattr(onednn, "conv", None), lambda: False),
        )
