"""JAX's random numbers: keys are made of shifted numbers, alike in both runs of a pair."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..patches import patch
from ..seeds import shifted

KEYS = ("PRNGKey", "key")


def seed(shift: int, jax: ModuleType) -> None:
    """Shifts what keys are made of; JAX draws nothing without one."""
    library: Any = jax
    for name in KEYS:
        patch(library.random, name, shifted(shift))
