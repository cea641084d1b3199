"""What NumPy opens goes through ``open``; only a large array that may be written to is opened another way."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from ..files import Overlay
from ..mapped import is_kept_private
from ..patches import patch

Array = TypeVar("Array")


def divert(overlay: Overlay, numpy: ModuleType) -> None:
    """What NumPy opens goes through ``open``; only a large array that may be written to is opened another way."""
    patch(numpy.memmap, "__new__", lambda original: _memmap(overlay, original))


def _memmap(overlay: Overlay, original: Callable[..., Array]) -> Callable[..., Array]:
    def __new__(subtype: type[Array], filename: object, *args: object, **kwargs: object) -> Array:
        mode = args[1] if len(args) > 1 else kwargs.get("mode", "r+")
        if mode in ("r+", "readwrite") and is_kept_private(overlay, filename):
            if len(args) > 1:
                args = (args[0], "c", *args[2:])
            else:
                kwargs["mode"] = "c"
        return original(subtype, filename, *args, **kwargs)

    return __new__
