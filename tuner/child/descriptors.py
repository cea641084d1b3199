"""Calls of ``os`` whose path is below the descriptor of a folder (``dir_fd``), as if the whole path were given."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from .files import Overlay
from .places import of_descriptor

Result = TypeVar("Result")
"""What a patched function gives back unchanged."""
Given = tuple[int, str, str]
"""A path among the arguments of a function: its place, its name, and the name of the descriptor that it is below."""
_ONE: tuple[Given, ...] = ((0, "path", "dir_fd"),)
_TWO: tuple[Given, ...] = ((0, "src", "src_dir_fd"), (1, "dst", "dst_dir_fd"))
GIVEN: dict[str, tuple[Given, ...]] = {
    "rename": _TWO, "replace": _TWO, "link": _TWO, "symlink": ((1, "dst", "dir_fd"),),
}  # fmt: skip
"""Name of a function → its paths, where it hasn't just one."""


def whole_paths(
    overlay: Overlay, name: str, original: Callable[..., Result], function: Callable[..., Result]
) -> Callable[..., Result]:
    """``function``, which replaces ``original`` of that name and knows no descriptors of folders.

    What the overlay does itself, and a descriptor of which the kernel doesn't tell the path, is the original's.
    """
    given = GIVEN.get(name, _ONE)

    def call(*args: object, **kwargs: object) -> Result:
        if overlay.is_working:
            return original(*args, **kwargs)
        if any(kwargs.get(folder) is not None for _, _, folder in given):
            whole = _joined(given, args, kwargs)
            if whole is None:
                return original(*args, **kwargs)
            args, kwargs = whole
        return function(*args, **kwargs)

    return call


def _joined(
    given: Sequence[Given], args: Sequence[object], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]] | None:
    places, names = list(args), dict(kwargs)
    for place, key, folder in given:
        descriptor = names.pop(folder, None)
        path = places[place] if place < len(places) else names.get(key)
        if descriptor is None or not isinstance(path, (str, bytes, os.PathLike)):
            continue
        top = of_descriptor(descriptor) if isinstance(descriptor, int) else None
        if top is None:
            return None
        whole = os.path.join(top, os.fsdecode(path))
        if place < len(places):
            places[place] = whole
        else:
            names[key] = whole
    return tuple(places), names
