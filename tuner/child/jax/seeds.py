"""JAX's random numbers: keys are made of shifted numbers, alike in both runs of a pair."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..patches import patch
from ..seeds import shifted

KEYS = ("PRNGKey", "key")


def seed(shift: int, jax: ModuleType) -> None:
    """Shifts what keys are made of; JAX draws nothing without one."""
    library: Any = jax
    for name in KEYS:
        patch(library.random, name, lambda original: _of_any_type(shifted(shift)(original)))


def _of_any_type(shift: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's whole numbers make the keys that Python's do."""

    def seeded(seed: Any, *args: Any, **kwargs: Any) -> Any:
        is_whole = isinstance(seed, numbers.Integral) and not isinstance(seed, bool)
        return shift(int(seed) if is_whole else seed, *args, **kwargs)

    return seeded
