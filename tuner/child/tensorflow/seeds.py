"""TensorFlow's seeds, shifted as all others are."""

from __future__ import annotations

from types import ModuleType

from ..patches import patch
from ..seeds import shifted


def seed(shift: int, tf: ModuleType) -> None:
    """Seeds its generator, and shifts what the script seeds. Keras seeds itself from the standard library's."""
    tf.random.set_seed(shift)
    patch(tf.random, "set_seed", shifted(shift))
