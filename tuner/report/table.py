"""A table as values: whoever prints it decides on borders and widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Named columns and rows of as many cells; ``right`` names the columns that are aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()
