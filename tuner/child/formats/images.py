"""OpenCV's pictures and films, which C++ writes."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from ..files import Overlay
from ..patches import patch, put
from .calls import Change, led, wearing

_WRITES = ("imwrite", "imwritemulti", "imwriteWithMetadata", "imwriteanimation")
_READS = ("imread", "imreadmulti", "imreadWithMetadata", "imreadanimation", "imcount", "haveImageReader")


def divert_cv2(overlay: Overlay, module: ModuleType) -> None:
    """What a version lacks isn't led; a ``FileStorage`` never is."""

    def saving(path: object) -> object:
        return overlay.saving(path, model=False)

    for names, change in ((_WRITES, saving), (_READS, overlay.loading)):
        for name in names:
            if hasattr(module, name):
                patch(module, name, partial(led, place=0, name="filename", change=change))
    put(module, "VideoWriter", _film(module.VideoWriter, saving))
    put(module, "VideoCapture", _film(module.VideoCapture, overlay.loading))


class _Kind(type):
    """Of a class that stands for one of OpenCV's, which can't be inherited from: its instances would be freed twice."""

    replaced: Any

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
