"""Paths, and whose they are: caches by the environment, the script's folders by the request."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

from .records import ChildRequest
from .wire import CACHES

TEMPORARY = ("tmp", "pymp-", "torch", "triton", "jax", ".")
"""Names in the temporary folder begin so where a library made them up: no script finds them by their name."""
GONE = "\0"
"""Lies in place of a path that the script removed."""
_MOST_LINKS = 40
_readlink = os.readlink


def is_in(path: str, folder: str) -> bool:
    """Whether it is the folder, or below it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def entry(path: str) -> str:
    """The path with the links in its folder resolved, and itself as it is."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def followed(path: str, find: Callable[[str], str | None]) -> str:
    """The absolute path with its links followed, where each of its folders lies at what ``find`` says.

    ``find`` gives None for a path that is what it says, and ``GONE`` for one that isn't there. Links that go in a
    circle are left as they are.
    """
    left, name, links = path.split(os.sep)[::-1], os.sep, 0
    while left:
        part = left.pop()
        if part in ("", os.curdir):
            continue
        below = os.path.dirname(name) if part == os.pardir else os.path.join(name, part)
        place = find(below)
        text = None if place == GONE or links == _MOST_LINKS else _text_of(below if place is None else place)
        if text is None:
            name = below
            continue
        links += 1
        name = os.sep if os.path.isabs(text) else name
        left += text.split(os.sep)[::-1]
    return name


def _text_of(path: str) -> str | None:
    """Where a link leads, as it says itself; None where there is none."""
    try:
        return _readlink(path)
    except OSError:
        return None


def of_descriptor(descriptor: int) -> str | None:
    """What was opened, by its path; None where the kernel doesn't tell."""
    try:
        path = _readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    return path if os.path.isabs(path) else None


def caches() -> Iterator[str]:
    """What the environment names as one, such as the study's own for what is compiled."""
    for name in CACHES:
        value = os.environ.get(name, "")
        if os.path.isabs(value):
            yield value


def folders_of(request: ChildRequest) -> Iterator[str]:
    """Where the script lies, and every path that its arguments name."""
    if request.script:
        yield os.path.dirname(os.path.realpath(request.script))
    for argument in request.argv:
        value = argument.rpartition("=")[2]
        if os.sep in value:
            yield os.path.realpath(value)


class Places:
    """Which folders hold files of the user's that a trial may not write over, and which hold what anyone may.

    Paths are given with all links resolved, but for ``is_watched``.
    """

    def __init__(self, request: ChildRequest) -> None:
        self.folder = os.path.realpath(request.folder)
        self.home = os.path.realpath(os.path.expanduser("~"))
        self.temporary = os.path.realpath(tempfile.gettempdir())
        self.library_cache = os.path.join(self.home, ".cache")
        self.named = tuple(path for path in folders_of(request) if path not in (self.library_cache, self.temporary))
        homes = (os.path.realpath(os.getcwd()), *self.named)
        self.caches = tuple(
            cache for cache in map(os.path.realpath, caches()) if not any(is_in(home, cache) for home in homes)
        )

    def is_protected(self, real: str, everywhere: bool) -> bool:
        """Whether the path lies where trials may not write what they like. ``everywhere``: also in caches."""
        of_the_kernel = real.startswith(("/dev/", "/proc/", "/sys/")) and not is_in(real, "/dev/shm")
        if of_the_kernel or is_in(real, self.folder):
            return False
        if everywhere:
            return True
        if self._is_cached(real):
            return False
        return self._is_named(real) or not is_in(real, self.library_cache)

    def is_watched(self, path: str, model: bool = False) -> bool:
        """Whether what is made there is put aside. Libraries keep downloads in the home folder, and much in /tmp."""
        real = os.path.realpath(path)
        if not self.is_protected(real, model):
            return False
        if model or self._is_named(real):
            hidden = is_in(real, self.home) and os.path.relpath(real, self.home).startswith(".")
            return model or not hidden
        if is_in(real, self.temporary):
            return not os.path.relpath(real, self.temporary).startswith(TEMPORARY)
        return not is_in(real, self.home)

    def _is_cached(self, real: str) -> bool:
        if any(is_in(real, cache) for cache in self.caches) or f"{os.sep}__pycache__" in real:
            return True
        compiled = os.path.join(self.temporary, "torchinductor_")
        return real.startswith(compiled)

    def _is_named(self, real: str) -> bool:
        """Whether it is below the current folder, the script's, or one that an argument of the script names."""
        return any(is_in(real, home) for home in (os.path.realpath(os.getcwd()), *self.named))
