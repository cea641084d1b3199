"""On how many devices of one process Keras computes with JAX: those that a distribution of the script's names."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..session import Session


class DistributionWatch:
    """Asks for the distribution (``keras.distribution``) that holds whenever a call trains. ``count``: most devices.

    On the other backends, and in a Keras that has none, it is one device.
    """

    def __init__(self, session: Session, keras: ModuleType) -> None:
        self.session = session
        self.count = 1
        self._keras: Any = keras

    def begins(self) -> None:
        """A call of the script's trains."""
        self.count = max(self.count, self._now())
        if self.session.measuring and self.count > 1:
            self.session.facts.devices = self.count

    def trained_on(self) -> int:
        """For ``autotune run``, with the first step."""
        return max(self.count, self._now())

    def _now(self) -> int:
        library = self._keras
        if library.backend.backend() != "jax" or not hasattr(library, "distribution"):
            return 1
        distribution = library.distribution.distribution()
        return 1 if distribution is None else int(distribution.device_mesh.devices.size)
