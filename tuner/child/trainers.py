"""Trainers that wrap PyTorch: a knob that such a trainer has an option for is left to the trainer."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from .session import Session

ADAPTERS: dict[str, Callable[[Session, ModuleType], None]] = {}
