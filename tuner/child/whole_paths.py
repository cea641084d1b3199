"""Paths below the descriptor of a folder (``dir_fd``), or through what took a place of the user's: as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable
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
_ITSELF = {"remove", "unlink", "rmdir", "rmtree", "mkdir", "rename", "replace", "link", "symlink", "lchown"}
"""Functions that act on a link, and not on what it leads to."""
_ASKING = {
    "open", "stat", "lstat", "readlink", "access", "truncate", "getxattr", "listxattr", "statvfs", "listdir", "scandir",
    "chdir", "fchdir",
}  # fmt: skip
"""Functions that ask the overlay for what is meant themselves."""


def whole_paths(
    overlay: Overlay, name: str, original: Callable[..., Result], function: Callable[..., Result]
) -> Callable[..., Result]:
    """``function``, which replaces ``original`` of that name, given what is meant by each path: see ``Overlay.meant``.

    What the overlay does itself, and a descriptor of which the kernel doesn't tell the path, is the original's.
    """
    given, finds = GIVEN.get(name, _ONE), name not in _ASKING

    def call(*args: object, **kwargs: object) -> Result:
        if overlay.is_working:
            return original(*args, **kwargs)
        below = bool(kwargs) and any(kwargs.get(folder) is not None for _, _, folder in given)
        if not (below or (finds and (overlay.relinked or overlay.is_elsewhere))):
            return function(*args, **kwargs)
        places, names = list(args), dict(kwargs)
        follow = name not in _ITSELF and bool(names.get("follow_symlinks", True))
        for place, key, folder in given:
            path = places[place] if place < len(places) else names.get(key)
            if not isinstance(path, (str, bytes, os.PathLike)):
                names.pop(folder, None)
                continue
            whole = _whole(path, names.pop(folder, None))
            if whole is None:
                return original(*args, **kwargs)
            whole = overlay.meant(whole, follow=follow) if finds else whole
            if isinstance(path, bytes):
                whole = os.fsencode(whole)
            if place < len(places):
                places[place] = whole
            else:
                names[key] = whole
        return function(*places, **names)

    return call


def _whole(path: str | bytes | os.PathLike[str], folder: object) -> str | bytes | os.PathLike[str] | None:
    """The path, joined to that of the folder whose descriptor is given; None where that isn't known."""
    if folder is None:
        return path
    top = of_descriptor(folder) if isinstance(folder, int) else None
    return None if top is None else os.path.join(top, os.fsdecode(path))
