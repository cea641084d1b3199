"""JAX's objects, as far as they are used here, and their places among what a call is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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


def places_of(leaves: Leaves, args: Arguments, kwargs: Keywords) -> Iterable[tuple[Place, Any]]:
    """Every leaf of a call's arguments, and its place."""
    given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for argument, value in given:
        for number, leaf in enumerate(leaves(value)):
            yield (argument, number), leaf


def leaves_at(leaves: Leaves, args: Arguments, kwargs: Keywords, places: Iterable[Place]) -> Iterable[Any]:
    """What a call's arguments hold at these places, as far as there are such."""
    flat: dict[int | str, list[Any]] = {}
    for argument, number in places:
        if argument not in flat:
            is_given = argument < len(args) if isinstance(argument, int) else argument in kwargs
            value = (args[argument] if isinstance(argument, int) else kwargs[argument]) if is_given else None
            flat[argument] = leaves(value)
        if number < len(flat[argument]):
            yield flat[argument][number]


def statics_of(jitted: object) -> frozenset[int | str]:
    """Numbers and names of the arguments that ``jax.jit`` compiles a function for, as JAX has made them out."""
    about = getattr(jitted, "_jit_info", None)
    return frozenset((*getattr(about, "static_argnums", ()), *getattr(about, "static_argnames", ())))


def members_of(leaf: Any) -> int:
    """How long the dimension is that ``vmap`` has taken off its front; 0 where it has taken none from there."""
    shape = shape_of(getattr(leaf, "val", None)) if getattr(leaf, "batch_dim", None) == 0 else ()
    return shape[0] if shape else 0


def leaves_by(flatten: Leaves) -> Leaves:
    """The leaves of any structure, by JAX's own function. That refuses dictionaries whose keys it can't sort, which a
    script may have beside what it differentiates: JAX never looks into those.
    """

    def leaves(structure: Any) -> list[Any]:
        try:
            return flatten(structure)
        except (TypeError, ValueError):
            parts = structure.values() if isinstance(structure, Mapping) else structure
            is_known = isinstance(structure, (Mapping, list, tuple))
            return [leaf for part in parts for leaf in leaves(part)] if is_known else [structure]

    return leaves
