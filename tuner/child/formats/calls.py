"""Calls of native libraries that are given a path: with another one in its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..files import Overlay

Call = Callable[..., Any]
Change = Callable[[object], object]


def led(original: Call, *, place: int, name: str, change: Change) -> Call:
    """``original``, the argument changed that has this place and this name; what is left out stays so."""

    def call(*args: object, **kwargs: object) -> object:
        if len(args) > place:
            args = (*args[:place], change(args[place]), *args[place + 1 :])
        elif name in kwargs:
            kwargs = {**kwargs, name: change(kwargs[name])}
        return original(*args, **kwargs)

    return call


def or_nowhere(overlay: Overlay, change: Change) -> Change:
    """``change``; where the script removed what is meant, a path at which nothing lies: a library says so itself."""

    def changed(path: object) -> object:
        try:
            return change(path)
        except FileNotFoundError:
            name = overlay.absolute(path)
            return path if name is None else os.path.join(overlay.root, name.lstrip(os.sep))

    return changed


def wearing(kind: Any, replaced: Any) -> type:
    """The class, named as the one that it takes the place of."""
    kind.__name__, kind.__qualname__ = replaced.__name__, replaced.__qualname__
    kind.__module__, kind.__doc__ = replaced.__module__, replaced.__doc__
    made: type = kind
    return made
