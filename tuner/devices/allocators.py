"""Allocators of host memory that are installed here, and how a process gets one in the place of its C library's."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tuner.child import wire

PRELOAD = "LD_PRELOAD"
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "jemalloc": ("libjemalloc.so",),
    "tcmalloc": ("libtcmalloc_minimal.so", "libtcmalloc.so"),
    "mimalloc": ("libmimalloc.so",),
}
"""Value of the knob "allocator" → its libraries' names up to their versions, the one that is wanted first."""
_APART = " :"
"""What separates libraries in the variable: no path may hold it."""


def installed(folders: Iterable[Path] | None = None) -> dict[str, Path]:
    """Name → library, of those in the folders that a loader searches; the first one of each name. Linux alone."""
    if folders is None and sys.platform != "linux":
        return {}
    places = list(_folders() if folders is None else folders)
    found: dict[str, Path] = {}
    for name, libraries in LIBRARIES.items():
        files = (file for folder in places for library in libraries for file in sorted(folder.glob(f"{library}*")))
        fits = (file for file in files if file.is_file() and not set(_APART) & set(str(file)))
        first = next(fits, None)
        if first is not None:
            found[name] = first
    return found


def environment(name: object, given: Mapping[str, str], folders: Iterable[Path] | None = None) -> dict[str, str]:
    """The variables by which a child begins with that allocator, after whatever the user preloads.

    A sanitizer has to be the first one, and another allocator of the user's stays in use. The child takes its own one
    out again (``tuner/child/preloading.py``). Nothing where it isn't installed: the process shows that it runs without.
    """
    library = installed(folders).get(str(name))
    if library is None:
        return {}
    preloaded = ":".join(filter(None, (given.get(PRELOAD, ""), str(library))))
    return {PRELOAD: preloaded, wire.PRELOADED_ENV: str(library)}


def _folders() -> Iterator[Path]:
    """The user's own first; a Conda environment's beside the interpreter."""
    named = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    usual = ("/usr/local/lib", f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib")
    for folder in (*named, f"{sys.prefix}/lib", *usual):
        if os.path.isabs(folder):
            yield Path(folder)
