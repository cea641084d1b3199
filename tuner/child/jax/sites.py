"""What gradients are taken by: compiled functions, and places outside of them."""

from __future__ import annotations

from .functions import JittedFunction
from .rows import Rows


class EagerSite:
    """A place where gradients are taken, or updates applied, outside of any compiled function."""

    def __init__(self, name: str, rows: Rows) -> None:
        self.name = name
        self.rows = rows


Owner = JittedFunction | EagerSite
"""What gradients are taken by."""
