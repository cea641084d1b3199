"""A TPU: used through PyTorch's XLA devices, TensorFlow's strategy, or JAX. Never tried on one."""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType
from typing import Any

from ..records import Memory
from .base import told_by_jax
from .pjrt import Pjrt, begun


class TpuDevice(Pjrt):
    """bf16 is its own format; fp16 isn't computed in."""

    kind = "tpu"
    tensorflow_strategy = "tpu"

    def torch_memory(self, torch: ModuleType, used_by_others: int) -> Memory | None:
        """Of the first chip, the only one that the process sees; a peak where the runtime counts one."""
        module: Any = begun()
        if module is None:
            return None
        told = module._XLAC._xla_memory_info(str(module.device()))
        peak = int(told.get("peak_bytes_used") or told["bytes_used"])
        return Memory(reserved=peak, allocated=peak, total=int(told["bytes_limit"]))

    def tensorflow_missing(self, tf: ModuleType) -> str:
        return "" if tf.config.list_logical_devices("TPU") else "TensorFlow uses no TPU here: the steps ran elsewhere"

    def jax_missing(self, jax: ModuleType, platforms: Collection[str] = ()) -> str:
        ran_on = platforms or (jax.default_backend(),)
        return "" if "tpu" in ran_on else "JAX sees no TPU here: the steps ran elsewhere"

    def jax_memory(self, jax: ModuleType) -> Memory | None:
        return told_by_jax(jax)
