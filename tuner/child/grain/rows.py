"""How many samples a Grain pipeline's elements hold."""

from __future__ import annotations

from typing import Any


def rows_of(element: Any) -> int:
    """The first dimension of its arrays; 1 where it is a single sample, 0 where their first dimensions differ."""
    lengths = {shape[0] if shape else 1 for shape in _shapes(element)}
    return lengths.pop() if len(lengths) == 1 else 0


def _shapes(element: Any) -> list[tuple[int, ...]]:
    if isinstance(element, dict):
        return [shape for value in element.values() for shape in _shapes(value)]
    if isinstance(element, (list, tuple)):
        return [shape for value in element for shape in _shapes(value)]
    shape = getattr(element, "shape", None)
    if isinstance(shape, tuple):
        return [tuple(map(int, shape))]
    parts = getattr(element, "__dict__", None)
    return _shapes(parts) if isinstance(parts, dict) and parts else []
