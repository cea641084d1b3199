"""Which of a function's results is the training loss: seen in its trace, or told by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WORD = "loss"
Paths = Sequence[tuple[Any, Any]]
"""The leaves of a structure with their paths, as ``jax.tree_util.tree_flatten_with_path`` gives them."""


def place_of(value: Any, paths: Paths) -> int | None:
    """The number of the loss among a result's leaves; None where none is seen.

    It is the result that is the differentiated value, as it is. Where none is (it is averaged over devices, computed
    again for the metrics, or in a loop), or where the value isn't known (None), it is the one number called so.
    """
    found = next((n for n, (_, leaf) in enumerate(paths) if leaf is value), None) if value is not None else None
    return found if found is not None else _named(paths)


def is_number(leaf: Any) -> bool:
    """Whether it is one number, or that of the one device that a function is mapped over."""
    return getattr(leaf, "shape", None) in ((), (1,))


def _named(paths: Paths) -> int | None:
    """The only number whose path says that it is a loss."""
    found = [
        number for number, (path, leaf) in enumerate(paths)
        if WORD in "".join(map(str, path)).lower() and is_number(leaf)
        and "float" in str(getattr(leaf, "dtype", ""))
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None
