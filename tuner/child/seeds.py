"""Shifts the seeds that a script sets, the same way in both runs of a pair: otherwise every seed would be one seed.

A script that sets none gets the shift as its seed, since pairs must draw the same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from . import preloaded
from .patches import patch

_LARGEST = 2**32  # what NumPy takes


def install(shift: int) -> None:
    """For the standard library; called before the script runs."""
    random.seed(shift)
    for _ in range(preloaded.here.drawn if preloaded.here is not None else 0):
        random.getrandbits(32)  # as the imports would have that a fork server has done before
    patch(random, "seed", lambda original: _named_a(shifted(shift)(original)))


def _named_a(seed: Callable[..., None]) -> Callable[..., None]:
    """With the parameters of ``random.seed``, which calls its seed ``a``."""

    def seeded(a: object = None, *args: object, **kwargs: object) -> None:
        seed(a, *args, **kwargs)

    return seeded


def shifted(shift: int) -> Callable[[Any], Any]:
    """What to patch a seeding function with: its first argument, a whole number, is shifted; none means the shift."""

    def wrap(original: Any) -> Any:
        def seeded(seed: Any = None, *args: Any, **kwargs: Any) -> Any:
            if seed is None:
                return original(shift, *args, **kwargs)
            if isinstance(seed, int):
                return original((seed + shift) % _LARGEST, *args, **kwargs)
            return original(seed, *args, **kwargs)

        return seeded

    return wrap
