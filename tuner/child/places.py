"""Paths, and whose they are: caches by the environment, the script's folders by the request."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .records import ChildRequest

_readlink = os.readlink


def is_in(path: str, folder: str) -> bool:
    """Whether it is the folder, or below it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def entry(path: str) -> str:
    """The path with the links in its folder resolved, and itself as it is."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def of_descriptor(descriptor: int) -> str | None:
    """What was opened, by its path; None where the kernel doesn't tell."""
    try:
        path = _readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    return path if os.path.isabs(path) else None


def caches() -> Iterator[str]:
    """What the environment names as one, such as the study's own for what is compiled."""
    for name, value in os.environ.items():
        if os.path.isabs(value) and ("CACHE" in name or name in ("HF_HOME", "TORCH_HOME", "KERAS_HOME")):
            yield value


def folders_of(request: ChildRequest) -> Iterator[str]:
    """Where the script lies, and every path that its arguments name."""
    if request.script:
        yield os.path.dirname(os.path.realpath(request.script))
    for argument in request.argv:
        value = argument.rpartition("=")[2]
        if os.sep in value:
            yield os.path.realpath(value)
