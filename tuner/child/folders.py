"""The current folder and what lies in a folder, as the script sees them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar

from .files import Overlay
from .places import is_in, of_descriptor

Result = TypeVar("Result")
"""What a patched function gives back unchanged."""
Scan = AbstractContextManager[Iterator[os.DirEntry[str]]]
"""What ``os.scandir`` gives."""


def place_for(overlay: Overlay, folder: str) -> str:
    """Where a library has to make the folder, an absolute path, which it makes by itself past Python.

    In place of one of the user's that the script removed it is the trial's, which is there then.
    """
    if overlay.is_active and overlay.view(folder) != folder:
        os.makedirs(folder, exist_ok=True)
        return overlay.view(folder) or folder
    return folder


def chdir(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    """A version of the trial's is gone to, and goes by the name of the user's."""
    where = os.getcwd

    def call(path: object) -> Result:
        result = original(overlay.for_reading(path))
        overlay.is_elsewhere = is_in(where(), overlay.root)
        return result

    return call


def getcwd(overlay: Overlay, original: Callable[[], str]) -> Callable[[], str]:
    """The name that the script gave."""

    def call() -> str:
        return overlay.named(original()) if overlay.is_elsewhere else original()

    return call


def getcwdb(overlay: Overlay, original: Callable[[], bytes]) -> Callable[[], bytes]:
    """Likewise, as bytes."""

    def call() -> bytes:
        return os.fsencode(os.getcwd()) if overlay.is_elsewhere else original()

    return call


def listdir(overlay: Overlay, original: Callable[..., object]) -> Callable[..., object]:
    """Without the names that the script removed."""

    def call(path: object = None) -> object:
        name = _folder(overlay, path) if overlay.is_active and not overlay.is_working else None
        if name is None:
            return original(path)
        place = overlay.for_reading(name)
        with overlay.working():
            names = original(os.fsencode(place) if isinstance(path, bytes) else place)
            return overlay.listed(name, names) if isinstance(names, list) else names

    return call


def scandir(overlay: Overlay, original: Callable[..., Scan]) -> Callable[..., object]:
    """Likewise; what an entry tells is of the trial's version."""

    def call(path: object = None) -> object:
        name = _folder(overlay, path) if overlay.is_active and not overlay.is_working else None
        if name is None:
            return original(path)
        place = overlay.for_reading(name)
        with overlay.working(), original(os.fsencode(place) if isinstance(path, bytes) else place) as scan:
            return Entries(overlay, name, path, list(scan))

    return call


def _folder(overlay: Overlay, path: object) -> str | None:
    """The folder that is to be listed: the current one, what was opened, or what is meant."""
    if isinstance(path, int):
        opened = of_descriptor(path)
        return None if opened is None else overlay.named(opened)
    return overlay.absolute("." if path is None else overlay.meant(path))


class Entry:
    """What ``os.DirEntry`` is, of a path that may lie elsewhere. Paths are bytes where the script gives such."""

    __slots__ = ("_found", "_whole", "name", "path")

    def __init__(self, found: os.DirEntry[str], path: str, whole: str | None) -> None:
        """``whole``: the path to ask for; None where ``found`` knows."""
        self._found = found
        self._whole = whole
        self.name = found.name
        self.path = path

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As ``os.stat``."""
        if self._whole is None:
            return self._found.stat(follow_symlinks=follow_symlinks)
        return os.stat(self._whole, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """The number of the file, links not followed."""
        return self._found.inode() if self._whole is None else os.lstat(self._whole).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        if self._whole is None:
            return self._found.is_dir(follow_symlinks=follow_symlinks)
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a regular file."""
        if self._whole is None:
            return self._found.is_file(follow_symlinks=follow_symlinks)
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        """Whether it is a link."""
        return self._found.is_symlink() if self._whole is None else stat.S_ISLNK(self._mode(False))

    def is_junction(self) -> bool:
        """There are none but on Windows."""
        return False

    def _mode(self, follow: bool) -> int:
        try:
            return os.stat(str(self._whole), follow_symlinks=follow).st_mode
        except FileNotFoundError:
            return 0


def _entry(overlay: Overlay, folder: str, real: str, given: object, found: os.DirEntry[str]) -> Entry:
    """``real``: the folder, its links followed. ``given``: the folder as the script gives it."""
    name = os.fsdecode(found.name)
    whole = os.path.join(folder, name)
    knows = not found.is_symlink() and os.path.join(real, name) not in overlay.diverted
    if knows and overlay.is_shared:
        knows = overlay.view(whole, follow=False) == os.fsdecode(found.path)
    top = os.curdir if given is None else given
    path = os.path.join(top, found.name) if isinstance(top, (str, os.PathLike)) else found.name
    if isinstance(top, bytes):
        path = os.path.join(top, found.name)  # type: ignore[call-overload]  # a name is bytes, too
    return Entry(found, path, None if knows else whole)


class Entries:
    """What ``os.scandir`` gives of the folder, without the entries that the script removed. ``given``: its argument."""

    def __init__(self, overlay: Overlay, folder: str, given: object, found: list[os.DirEntry[str]]) -> None:
        kept = set(overlay.listed(folder, [entry.name for entry in found]))
        real = overlay.real(folder)
        self._entries = iter([_entry(overlay, folder, real, given, entry) for entry in found if entry.name in kept])

    def __iter__(self) -> Entries:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held open."""
