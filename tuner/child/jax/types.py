"""JAX's objects, as far as they are used here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]
Call = Callable[..., Any]
"""A function of the script's, or what JAX makes of one."""
Leaves = Callable[[Any], list[Any]]
"""The arrays and other leaves in a structure."""
Place = tuple[int | str, int]
"""An argument, by number or name, and one of the leaves in it."""
Aval = tuple[tuple[int, ...], str]
"""Shape and element type of an array."""


class Array(Protocol):
    """An array of JAX's or NumPy's."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> object: ...


def shape_of(leaf: Any) -> tuple[int, ...]:
    """The shape of an array; of anything else, and of an array without dimensions, ()."""
    shape = getattr(leaf, "shape", ())
    return shape if type(shape) is tuple and hasattr(leaf, "dtype") else ()


def aval_of(leaf: Array) -> Aval:
    """Shape and element type."""
    return leaf.shape, str(leaf.dtype)
