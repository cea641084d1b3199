"""What NumPy opens goes through ``open``; only a large array that may be written to is opened another way."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from ..files import Overlay
from ..patches import patch

Array = TypeVar("Array")
_MUCH_BYTES = 2**28
"""An array of the user's beyond that isn't copied for a script that may only read it."""


def divert(overlay: Overlay, numpy: ModuleType) -> None:
    """What NumPy opens goes through ``open``; only a large array that may be written to is opened another way."""
    patch(numpy.memmap, "__new__", lambda original: _memmap(overlay, original))


def _memmap(overlay: Overlay, original: Callable[..., Array]) -> Callable[..., Array]:
    def __new__(subtype: type[Array], filename: object, *args: object, **kwargs: object) -> Array:
        mode = args[1] if len(args) > 1 else kwargs.get("mode", "r+")
        name = overlay.absolute(filename)
        if mode in ("r+", "readwrite") and name is not None and _is_much(overlay, name):
            text = f"{name} is opened for writing: what is written to it stays in memory, and is never read back"
            overlay.keeps(name, text)
            if len(args) > 1:
                args = (args[0], "c", *args[2:])
            else:
                kwargs["mode"] = "c"
        return original(subtype, filename, *args, **kwargs)

    return __new__


def _is_much(overlay: Overlay, name: str) -> bool:
    with overlay.working():
        if overlay.view(name) != name or not overlay.is_users(name):
            return False
        return os.path.getsize(name) > _MUCH_BYTES
