"""The host's processor. It works at once: nothing is waited for, and its memory is the process's own.

fp16 isn't offered: it is emulated there, and a convolution was seen to take 60 times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from . import products, settings
from .base import Device, Rounding

CPUINFO = Path("/proc/cpuinfo")
BF16_FEATURES = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Linux's names of instructions that compute in bf16, on x86 and on ARM."""


class CpuDevice(Device):
    """Also stands in for a kind of device that nobody knows."""

    kind = "cpu"
    torch_type = "cpu"
    torch_rounded = "bf16-math"
    xla_runs_in_threads = True
    may_be_several = True

    def torch_precisions(self, torch: ModuleType) -> list[str]:
        """With products of float32 in bf16 only where oneDNN is seen to take them so, once it is allowed to."""
        offered = False
        # A build without oneDNN has no such settings, and the script's own may bar ours.
        with suppress(AttributeError, RuntimeError):
            put_back = self.torch_kept_rounding(torch)
            try:
                self.torch_set_rounding(torch, True)
                offered = products.rounds_to_bf16(torch)
            finally:
                put_back()
        return ["fp32", *([self.torch_rounded] if offered else []), "bf16"]

    def emulated_precisions(self) -> list[str]:
        """bf16 where the kernel lists the processor's features, and none for it: there a convolution was seen to take
        16 times as long as in float32.
        """
        features = _features()
        return ["bf16"] if features and features.isdisjoint(BF16_FEATURES) else []

    def torch_set_rounding(self, torch: ModuleType, rounds: bool) -> None:
        """Of matrix products in the older words, which every version has and other settings of PyTorch's follow."""
        torch.set_float32_matmul_precision("medium" if rounds else "highest")
        convolutions: Any = getattr(torch.backends.mkldnn, "conv", None)
        if getattr(convolutions, "fp32_precision", None) is not None:
            convolutions.fp32_precision = "bf16" if rounds else "ieee"

    def torch_kept_rounding(self, torch: ModuleType) -> Callable[[], None]:
        return settings.kept(torch)

    def torch_seen_rounding(self, torch: ModuleType) -> bool:
        return products.rounds_to_bf16(torch)

    def torch_rounding(self, torch: ModuleType) -> Rounding:
        """oneDNN may round; whether this processor does, ``torch_seen_rounding`` tells."""
        onednn = torch.backends.mkldnn
        return Rounding(
            matmul=settings.rounds(
                getattr(onednn, "matmul", None), lambda: torch.get_float32_matmul_precision() == "medium", ("bf16",)
            ),
            convolution=settings.rounds(getattr(onednn, "conv", None), lambda: False, ("bf16",)),
        )


def _features() -> frozenset[str]:
    """The processor's, in Linux's words; none where it doesn't tell."""
    with suppress(OSError):
        lines = CPUINFO.read_text(encoding="ascii", errors="replace").splitlines()
        told = (line.partition(":") for line in lines)
        named = [words for name, _, words in told if name.strip() in ("flags", "Features")]
        return frozenset(named[0].split()) if named else frozenset()
    return frozenset()
