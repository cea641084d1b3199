"""NumPy trains nothing here: its seeds are shifted, and what it maps into memory is led."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from ..adapter import Adapter, Library
from ..patches import patch
from ..seeds import shifted
from ..session import Session
from .files import divert


class NumpyAdapter(Adapter):
    """Seeds and files."""

    framework = "numpy"

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def libraries(self) -> Mapping[str, Library]:
        """NumPy itself."""
        return {"numpy": Library(seed=seed, divert=divert)}


def seed(shift: int, numpy: ModuleType) -> None:
    """Seeds the global generator, and shifts what the script seeds."""
    numpy.random.seed(shift)
    patch(numpy.random, "seed", shifted(shift))
    patch(numpy.random, "default_rng", shifted(shift))
