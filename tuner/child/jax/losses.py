"""Which of a function's results is the training loss: seen in its trace, or told by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WORD = "loss"
Paths = Sequence[tuple[Any, Any]]
"""The leaves of a structure with their paths, as ``jax.tree_util.tree_flatten_with_path`` gives them."""


def place_of(value: Any, paths: Paths, devices: int = 1) -> int | None:
    """The number of the loss among a result's leaves; None where none is seen.

    It is the result that is the differentiated value, as it is, or its mean over devices. Where none is (it is computed
    again for the metrics, or in a loop), or where the value isn't known (None), it is the one number called so.
    ``devices``: so many each give one.
    """
    found = None
    if value is not None:
        found = next((n for n, (_, leaf) in enumerate(paths) if leaf is value or _averaged(leaf) is value), None)
    return found if found is not None else _named(paths, devices)


def is_number(leaf: Any, devices: int = 1) -> bool:
    """Whether it is one number, or one of each device that a function is mapped over."""
    return getattr(leaf, "shape", None) in ((), (1,), (devices,))


def number_of(leaf: Any, devices: int) -> float | None:
    """The number; the mean of those of several devices, each with as many samples. None where it is none."""
    if not is_number(leaf, devices):
        return None
    return float(leaf.item()) if leaf.shape in ((), (1,)) else sum(map(float, leaf.tolist())) / devices


def _averaged(leaf: Any) -> Any:
    """What a number is the mean of over devices (``lax.pmean``: their sum, divided), while JAX traces; else None."""
    divided = _operands(leaf, "div")
    summed = _operands(divided[0], "psum") if divided else ()
    return summed[0] if len(summed) == 1 else None


def _operands(leaf: Any, primitive: str) -> Sequence[Any]:
    """Of the operation that gave it, if that is called so."""
    operation = getattr(leaf, "parent", None)
    name = str(getattr(operation, "primitive", ""))
    return tuple(getattr(operation, "in_tracers", ())) if name.startswith(primitive) else ()


def _named(paths: Paths, devices: int) -> int | None:
    """The only number whose path says that it is a loss."""
    found = [
        number for number, (path, leaf) in enumerate(paths)
        if WORD in "".join(map(str, path)).lower() and is_number(leaf, devices)
        and "float" in str(getattr(leaf, "dtype", ""))
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None
