"""JAX: loops around ``jax.jit`` and eager ones, with optax, Flax or none of them; of Keras' own loops nothing."""

from __future__ import annotations

import sys
from typing import Any

from ..session import Session

FRAMEWORK = "jax"
"""What ``Knowledge.framework`` says of them, and the name under which steps are counted."""
ABOVE = "keras"
"""The framework that may train on JAX, and whose own loops aren't seen here."""


def is_below(session: Session) -> bool:
    """Whether Keras is known to train, and computes with JAX: by what is known of it, before it is imported."""
    config: Any = sys.modules.get("keras.src.backend.config")  # Keras' first module of all: there before it is whole
    backend = config.backend() if config is not None else session.request.knowledge.backend
    return session.trained_by == ABOVE and backend == FRAMEWORK
