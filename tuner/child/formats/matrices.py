"""SciPy's files of the Matrix Market, which C++ reads and writes; what else SciPy opens goes through ``open``."""

from __future__ import annotations

from functools import partial
from types import ModuleType

from ..files import Overlay
from ..patches import patch
from .calls import led, or_nowhere

MODULE = "scipy.io._fast_matrix_market._fmm_core"
"""Where every version since SciPy 1.12 opens them; Python alone did before. The end of a name is added by then."""


def divert_matrix_market(overlay: Overlay, module: ModuleType) -> None:
    """The two calls behind ``mmwrite``, and behind ``mmread`` and ``mminfo``."""

    def saving(path: object) -> object:
        return overlay.saving(path, model=False)

    for name, change in (("open_write_file", saving), ("open_read_file", overlay.loading)):
        patch(module, name, partial(led, place=0, name="path", change=or_nowhere(overlay, change)))
