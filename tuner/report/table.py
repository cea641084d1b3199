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


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of rows whose columns are aligned, the last one ragged."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows]
