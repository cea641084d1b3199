"""What is known of objects, by their identity: a script's own may be equal to each other, or have no hash."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar, overload

Kept = TypeVar("Kept")
Default = TypeVar("Default")


class ByIdentity(Generic[Kept]):
    """Object → what is kept of it, which goes with the object. Of what can't be referred to weakly nothing can be."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[object], Kept]] = {}

    def __setitem__(self, key: object, kept: Kept) -> None:
        number, of = id(key), self._of
        of[number] = weakref.ref(key, lambda _: of.pop(number, None)), kept

    def __contains__(self, key: object) -> bool:
        known = self._of.get(id(key))
        return known is not None and known[0]() is key

    def __len__(self) -> int:
        return len(self._of)

    @overload
    def get(self, key: object) -> Kept | None: ...

    @overload
    def get(self, key: object, default: Default) -> Kept | Default: ...

    def get(self, key: object, default: Default | None = None) -> Kept | Default | None:
        """What is kept of this object; ``default`` where nothing is."""
        known = self._of.get(id(key))
        return known[1] if known is not None and known[0]() is key else default
