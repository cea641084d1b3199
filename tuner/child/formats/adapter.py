"""Leads libraries that open files by themselves, and new processes, where the overlay says. It trains nothing.

And switches off what no variable does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from .. import carried
from ..adapter import Adapter, Library
from ..session import Session
from . import arrow, databases, images, matrices, models, silenced


class FormatsAdapter(Adapter):
    """One trial's libraries of file formats."""

    framework = "formats"

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def libraries(self) -> Mapping[str, Library]:
        """Each by itself: a script imports few of them."""
        return {
            "h5py": Library(divert=models.divert_h5py),
            "safetensors": Library(divert=models.divert_safetensors),
            "tokenizers": Library(divert=models.divert_tokenizers),
            "cv2": Library(divert=images.divert_cv2),
            matrices.MODULE: Library(divert=matrices.divert_matrix_market),
            **{name: Library(install=partial(silenced.silence, self.session)) for name in silenced.OFF},
            **{name: Library(install=partial(silenced.silence_clearml, self.session)) for name in silenced.CLEARML},
            **{name: Library(install=partial(silenced.silence_mlflow, self.session)) for name in silenced.MLFLOW},
            "lmdb": Library(divert=databases.divert_lmdb),
            "sqlite3": Library(divert=databases.divert_sqlite),
            **{name: Library(divert=arrow.divert_arrow) for name in arrow.MODULES},
            **{name: Library(divert=carried.divert_spawning) for name in carried.SPAWNING},
        }
