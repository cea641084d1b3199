"""What a step gave, held as loosely as the script holds it: nothing lives longer, or takes memory, for our sake."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from .rows import Leaves


def references_to(leaves: Leaves, result: Any) -> list[Callable[[], Any]]:
    """References to an array at each end of a result; each gives None once it is gone, or was given away."""
    ends = [_end_of(leaves, result, last=last) for last in (False, True)]
    return [_alive(weakref.ref(leaf)) for leaf in ends if hasattr(leaf, "is_deleted")]


def _end_of(leaves: Leaves, result: Any, *, last: bool) -> Any:
    """The first or last leaf, found without looking at all of them where that is possible."""
    while type(result) in (tuple, list, dict) and result:
        parts = result.values() if type(result) is dict else result
        result = next(reversed(parts)) if last else next(iter(parts))
    if hasattr(result, "is_deleted"):
        return result
    found = leaves(result)
    return found[-1 if last else 0] if found else None


def _alive(made: Callable[[], Any]) -> Callable[[], Any]:
    def newest() -> Any:
        leaf = made()
        return None if leaf is None or leaf.is_deleted() else leaf

    return newest
