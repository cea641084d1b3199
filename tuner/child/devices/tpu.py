"""A TPU: used through TensorFlow's strategy, or PyTorch's XLA devices, whose graphs the framework waits for itself."""

from __future__ import annotations

from types import ModuleType

from .base import Device


class TpuDevice(Device):
    """bf16 is its own format; fp16 isn't computed in."""

    kind = "tpu"
    torch_type = "xla"

    def jax_missing(self, jax: ModuleType) -> str:
        return "" if jax.default_backend() == "tpu" else "JAX sees no TPU here: the steps ran elsewhere"
