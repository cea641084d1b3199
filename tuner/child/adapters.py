"""The one list of adapters: every framework and library that a trial knows how to instrument."""

from __future__ import annotations

from collections.abc import Callable

from .adapter import Adapter
from .formats.adapter import FormatsAdapter
from .grain.adapter import GrainAdapter
from .jax.adapter import JaxAdapter
from .keras.adapter import KerasAdapter
from .numpy.adapter import NumpyAdapter
from .parsers import ParsersAdapter
from .session import Session
from .torch.adapter import TorchAdapter

ADAPTERS: list[Callable[[Session], Adapter]] = [
    NumpyAdapter, FormatsAdapter, ParsersAdapter, TorchAdapter, KerasAdapter, JaxAdapter, GrainAdapter,
]  # fmt: skip
