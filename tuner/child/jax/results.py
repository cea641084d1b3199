"""What calls gave, held as loosely as the script holds it: nothing lives longer, or takes memory, for our sake."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from .types import Leaves

Owner = TypeVar("Owner")
MOST_OWNERS = 64
MOST_PARAMETERS = 256


def references_to(leaves: Leaves, result: Any) -> list[Callable[[], Any]]:
    """References to an array at each end of a result; each gives None once it is gone, or was given away."""
    return list(map(_alive, ends_of(leaves, result)))


def ends_of(leaves: Leaves, result: Any) -> list[weakref.ref[Any]]:
    """The same of arrays that may have been given away: by their identity alone."""
    ends = [_end_of(leaves, result, last=last) for last in (False, True)]
    return [weakref.ref(leaf) for leaf in ends if hasattr(leaf, "is_deleted")]


def still_there(leaf: Any) -> bool:
    """Whether it is an array that can be waited for: one of JAX's that wasn't given away."""
    return hasattr(leaf, "is_deleted") and not leaf.is_deleted()


class Newest:
    """References to what the newest call of each function gave."""

    def __init__(self) -> None:
        self._of: dict[object, Sequence[Callable[[], Any]]] = {}

    def put(self, owner: object, made: Sequence[Callable[[], Any]]) -> None:
        """The newest results of one; ``owner`` is a function, or where an eager one stands."""
        key = owner if isinstance(owner, str) else id(owner)
        if key not in self._of and len(self._of) >= MOST_OWNERS:
            del self._of[next(iter(self._of))]
        self._of[key] = made

    def alive(self) -> Iterable[Any]:
        """Those that the script still has."""
        return [leaf for made in self._of.values() for each in made if (leaf := each()) is not None]


class Awaited(Generic[Owner]):
    """A gradient with respect to ``parameters``, for so many ``steps``, after which an update by hand has to come."""

    def __init__(self, owner: Owner, steps: int, parameters: Sequence[Any]) -> None:
        self.owner = owner
        self.steps = steps
        kept = parameters[:MOST_PARAMETERS]
        # Arrays of NumPy's may be changed in place.
        can_be_told = all(hasattr(leaf, "is_deleted") for leaf in kept)
        self._parameters = [weakref.ref(leaf) for leaf in kept] if can_be_told else []

    def goes_on(self, parameters: Sequence[Any]) -> bool:
        """Whether these are the very same: no update has come, and the next gradient is of another part."""
        known, given = self._parameters, parameters[:MOST_PARAMETERS]
        return bool(known) and len(known) == len(given) and all(
            made() is leaf for made, leaf in zip(known, given, strict=True)
        )  # fmt: skip


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
