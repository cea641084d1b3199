"""OpenCV's pictures and films, which C++ writes."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from ..files import Overlay
from ..patches import patch, put
from .calls import Change, led, or_nowhere, wearing

_WRITES = ("imwrite", "imwritemulti", "imwriteWithMetadata", "imwriteanimation")
_READS = ("imread", "imreadmulti", "imreadWithMetadata", "imreadanimation", "imcount", "haveImageReader")


def divert_cv2(overlay: Overlay, module: ModuleType) -> None:
    """What a version lacks isn't led; a ``FileStorage`` never is."""

    def saving(path: object) -> object:
        return overlay.saving(path, model=False)

    writing, reading = or_nowhere(overlay, saving), or_nowhere(overlay, overlay.loading)
    for names, change in ((_WRITES, writing), (_READS, reading)):
        for name in names:
            if hasattr(module, name):
                patch(module, name, partial(led, place=0, name="filename", change=change))
    put(module, "VideoWriter", _film(module.VideoWriter, writing))
    put(module, "VideoCapture", _film(module.VideoCapture, reading))


class _Kind(type):
    """Of a class that stands for one of OpenCV's, and isn't one below it: its instances would be freed twice.

    A class of the script's own that inherits from it is made below OpenCV's, whose calls aren't led then.
    """

    replaced: Any

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
        if not bases:
            return super().__new__(cls, name, bases, members)
        below = tuple(base.replaced if isinstance(base, _Kind) else base for base in bases)
        return type(below[0])(name, below, members)

    def __subclasscheck__(cls, other: type) -> bool:
        return other is cls or issubclass(other, cls.replaced)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.replaced)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.replaced, name)


def _film(kind: Any, change: Change) -> type:
    """Makes OpenCV's own objects. Their ``open`` isn't led."""

    class Film(metaclass=_Kind):
        replaced = kind

        def __new__(cls, *args: object, **kwargs: object) -> Any:
            return led(kind, place=0, name="filename", change=change)(*args, **kwargs)

    return wearing(Film, kind)
