"""PJRT's client for processors: the host as an XLA device of PyTorch's, in the memory of the process."""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType

from .pjrt import Pjrt


class XlaDevice(Pjrt):
    """bf16 is computed; whether that is any faster than float32 here, the trials tell."""

    kind = "xla"

    def tensorflow_missing(self, tf: ModuleType) -> str:
        return "TensorFlow doesn't train on PyTorch's XLA devices: study it with --device cpu"

    def torch_missing(self, torch: ModuleType) -> str:
        return "Keras doesn't train on PyTorch's XLA devices: study it with --device cpu"

    def jax_missing(self, jax: ModuleType, platforms: Collection[str] = ()) -> str:
        return "JAX doesn't train on PyTorch's XLA devices: study it with --device cpu"
