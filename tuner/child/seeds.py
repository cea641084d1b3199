"""Shifts the seeds that a script sets, the same way in both runs of a pair: otherwise every seed would be one seed.

A script that sets none gets the shift as its seed, since pairs must draw the same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .patches import patch

_LARGEST = 2**32  # what NumPy takes


def install(shift: int) -> None:
    """For the standard library; called before the script runs."""
    random.seed(shift)
    patch(random, "seed", _shifted(shift))


def install_numpy(shift: int, numpy: ModuleType) -> None:
    """Called right after ``import numpy``."""
    numpy.random.seed(shift)
    patch(numpy.random, "seed", _shifted(shift))
    patch(numpy.random, "default_rng", _shifted(shift))


def install_torch(shift: int, torch: ModuleType) -> None:
    """Called right after ``import torch``. ``torch.manual_seed`` seeds the accelerators, too."""
    torch.manual_seed(shift)
    patch(torch, "manual_seed", _shifted(shift))
    patch(torch.cuda, "manual_seed", _shifted(shift))
    patch(torch.cuda, "manual_seed_all", _shifted(shift))


def install_tensorflow(shift: int, tf: ModuleType) -> None:
    """Called right after ``import tensorflow``. Keras seeds itself from the standard library's generator."""
    tf.random.set_seed(shift)
    patch(tf.random, "set_seed", _shifted(shift))


def _shifted(shift: int) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        def seeded(seed: Any = None, *args: Any, **kwargs: Any) -> Any:
            if seed is None:
                return original(shift, *args, **kwargs)
            if isinstance(seed, int):
                return original((seed + shift) % _LARGEST, *args, **kwargs)
            return original(seed, *args, **kwargs)

        return seeded

    return wrap
