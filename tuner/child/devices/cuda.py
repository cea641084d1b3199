"""A CUDA device: runs behind the script's back, has memory of its own, and may round float32 to tf32."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from ..records import Memory
from . import settings
from .base import Device, Rounding, told_by_jax

AMPERE = 8
"""Major compute capability of the first cards that compute in tf32 and bf16; PyTorch emulates bf16 on older ones."""

JAX_PLATFORMS = frozenset({"gpu", "cuda"})
"""JAX's names of the kind."""


class CudaDevice(Device):
    """The process sees one card only, whatever its number on the machine: here it is always the first."""

    kind = "cuda"
    torch_type = "cuda"
    tensorflow_place = "/GPU:0"
    torch_optimizer_default = "foreach"
    asynchronous = True
    jax_may_round = True
    _noted_overhead: int | None = None

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self._reserved = self._allocated = 0

    def torch_synchronize(self, torch: ModuleType) -> None:
        if torch.cuda.is_initialized() and not self.torch_is_capturing(torch):
            torch.cuda.synchronize()

    def torch_is_capturing(self, torch: ModuleType) -> bool:
        return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())

    def torch_mark(self, torch: ModuleType) -> object | None:
        """In each stream that the script may train in: it may fetch its batches in another one, that copies them."""
        if not torch.cuda.is_initialized() or self.torch_is_capturing(torch):
            return None
        marks: list[object] = []
        for stream in dict.fromkeys((torch.cuda.current_stream(), torch.cuda.default_stream())):
            marks.append(torch.cuda.Event(enable_timing=True))
            stream.record_event(marks[-1])
        return marks

    def torch_seconds(self, before: Any, after: Any) -> float:
        """Those of the stream that had most to do."""
        idle_ms = [float(begin.elapsed_time(end)) for begin, end in zip(before, after, strict=False)]
        return max(0.0, min(idle_ms)) / 1000

    def torch_cap_memory(self, torch: ModuleType, most_bytes: int) -> None:
        """Set when the script first touches the card: to do so now would fix what it may still choose."""
        cuda = torch.cuda

        def cap() -> None:
            total = cuda.get_device_properties(0).total_memory
            cuda.set_per_process_memory_fraction(min(1.0, most_bytes / total), 0)

        cuda._lazy_call(cap)

    def torch_memory(self, torch: ModuleType, used_by_others: int) -> Memory | None:
        """Peaks since the process began, and not since its steps are steady: what the script resets was noted before.

        A compiled model's first call is as the script wrote it, and the compilation takes memory of its own: both
        happen under ``autotune run`` as in the trial, and have to fit. What the allocator took for them it keeps.
        """
        cuda = torch.cuda
        if not cuda.is_initialized():
            return None
        noted, (overhead, total) = self._noted_overhead, _overhead(torch, used_by_others)
        stats = cuda.memory_stats()
        return Memory(
            reserved=max(self._reserved, cuda.max_memory_reserved()),
            allocated=max(self._allocated, cuda.max_memory_allocated()), total=total,
            overhead=overhead if noted is None else noted,
            retries=stats.get("num_alloc_retries", 0), ooms=stats.get("num_ooms", 0),
        )  # fmt: skip

    def torch_note_overhead(self, torch: ModuleType, used_by_others: int) -> None:
        if torch.cuda.is_initialized():
            self._noted_overhead, _ = _overhead(torch, used_by_others)

    def torch_note_peaks(self, torch: ModuleType) -> None:
        if torch.cuda.is_initialized():
            self._reserved = max(self._reserved, torch.cuda.max_memory_reserved())
            self._allocated = max(self._allocated, torch.cuda.max_memory_allocated())

    def torch_precisions(self, torch: ModuleType) -> list[str]:
        """Without bf16 where it is emulated, before Ampere. Where it isn't, fp16 has no more to give."""
        if torch.cuda.get_device_capability()[0] >= AMPERE:
            return ["fp32", "tf32", "bf16"]
        return ["fp32", "fp16"]

    def torch_set_rounding(self, torch: ModuleType, rounds: bool) -> None:
        torch.set_float32_matmul_precision("high" if rounds else "highest")
        torch.backends.cudnn.allow_tf32 = rounds

    def torch_kept_rounding(self, torch: ModuleType) -> Callable[[], None]:
        return settings.kept(torch)

    def torch_rounding(self, torch: ModuleType) -> Rounding:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        return Rounding(
            matmul=settings.rounds(matmul, lambda: matmul.allow_tf32),
            convolution=settings.rounds(getattr(cudnn, "conv", None), lambda: cudnn.allow_tf32),
        )

    def tensorflow_cards(self, tf: ModuleType) -> list[object]:
        return list(tf.config.list_physical_devices("GPU"))

    def tensorflow_synchronize(self, tf: ModuleType) -> None:
        tf.test.experimental.sync_devices()

    def tensorflow_set_growth(self, tf: ModuleType, grows: bool) -> None:
        for card in self.tensorflow_cards(tf):
            tf.config.experimental.set_memory_growth(card, grows)

    def tensorflow_growth(self, tf: ModuleType) -> bool | None:
        return bool(tf.config.experimental.get_memory_growth(self.tensorflow_cards(tf)[0]))

    def tensorflow_cap_memory(self, tf: ModuleType, most_bytes: int) -> None:
        cards = self.tensorflow_cards(tf)
        if cards:
            cap = tf.config.LogicalDeviceConfiguration(memory_limit=most_bytes // 2**20)
            tf.config.set_logical_device_configuration(cards[0], [cap])

    def tensorflow_memory(self, tf: ModuleType) -> Memory | None:
        """The peak of what was in use. The pool is as large as it was limited to, unless it grows."""
        peak = int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
        limits: list[Any] = tf.config.get_logical_device_configuration(self.tensorflow_cards(tf)[0]) or []
        limit_mib = limits[0].memory_limit if len(limits) == 1 else None
        pool = 0 if self.tensorflow_growth(tf) else None
        return Memory(reserved=peak, allocated=peak, pool=pool if limit_mib is None else int(limit_mib) * 2**20)

    def tensorflow_missing(self, tf: ModuleType) -> str:
        if tf.config.list_logical_devices("GPU"):
            return ""
        return "TensorFlow sees no GPU here: the steps ran on the CPU"

    def tensorflow_precisions(self) -> list[str]:
        return ["fp32", "bf16", "fp16"]

    def tensorflow_rounds(self, tf: ModuleType) -> bool:
        return bool(tf.config.experimental.tensor_float_32_execution_enabled())

    def torch_missing(self, torch: ModuleType) -> str:
        return "" if torch.cuda.is_initialized() else "PyTorch has used no GPU here: the steps ran on the CPU"

    def jax_missing(self, jax: ModuleType, platforms: Collection[str] = ()) -> str:
        if jax.default_backend() not in JAX_PLATFORMS:
            return "JAX sees no GPU here: the steps ran on the CPU"
        if platforms and not set(platforms) & JAX_PLATFORMS:
            return f"JAX sees a GPU here, and the script has the steps run on another device ({', '.join(platforms)})"
        return ""

    def jax_precisions(self, jax: ModuleType) -> list[str]:
        """In tf32 JAX computes by itself, from Ampere on; a card of another maker's has no such number."""
        capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
        major = capability.partition(".")[0]
        return ["fp32", "tf32", "bf16"] if major.isdigit() and int(major) >= AMPERE else ["fp32"]

    def jax_memory(self, jax: ModuleType) -> Memory | None:
        return told_by_jax(jax)


def _overhead(torch: ModuleType, used_by_others: int) -> tuple[int, int]:
    """Bytes that driver and libraries hold for this process beside PyTorch's allocator, and all that the card has."""
    free, total = torch.cuda.mem_get_info()
    return max(0, total - free - torch.cuda.memory_reserved() - used_by_others), total
