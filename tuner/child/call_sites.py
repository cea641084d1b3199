"""Where in the user's own files a call comes from: what tells one loader, dataset or loss of a script from another."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

# Code that lies in no file, or in one that a library writes while it runs.
_NO_FILES = ("<frozen", "<string>")
_GENERATED = "__autograph_generated"
# What a folder of installed packages is called, wherever it lies.
_INSTALLED = ("site-packages", "dist-packages")


def frames() -> Iterator[tuple[str, int]]:
    """File and line of every call that led here, innermost first, without our own."""
    here = __file__.rsplit("/", 1)[0] + "/"
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(here):
            yield name, frame.f_lineno
        frame = frame.f_back


def user_stack() -> str:
    """Where in the user's own files the call came from, as ``file:line<file:line``; stable between runs."""
    path = tuple(sys.path)
    user = [(n, line) for n, line in frames() if not _lies_in_library(n, path)]
    return "<".join(f"{n.rsplit('/', 1)[-1]}:{line}" for n, line in user[:6]) or "library"


def inside_library() -> bool:
    """Whether an installed package makes the call, on the user's behalf."""
    caller = next((name for name, _ in frames()), "")
    return is_library(caller)


def is_library(name: str) -> bool:
    """Whether the file of this name belongs to Python or to an installed package, by where these lie."""
    # A folder that a script puts on its path holds libraries from then on.
    return _lies_in_library(name, tuple(sys.path))


@cache
def _lies_in_library(name: str, path: tuple[str, ...]) -> bool:
    if name.startswith(_NO_FILES) or _GENERATED in name:
        return True
    return name.startswith((*_library_folders(), *_folders_on(path)))


@cache
def _library_folders() -> tuple[str, ...]:
    """Python's own, and this environment's packages. As they are written and as they are, where links lead there."""
    import sysconfig  # takes a while, and is of no use to a script without a framework

    schemes = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    folders = [os.path.dirname(os.__file__), *schemes, *site.getsitepackages(), site.getusersitepackages()]
    return tuple({shape + os.sep for folder in folders for shape in (folder, os.path.realpath(folder))})


@cache
def _folders_on(path: tuple[str, ...]) -> tuple[str, ...]:
    """Folders of installed packages on the path, the script's own excepted."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    own = os.path.dirname(os.path.abspath(main)) if main else ""
    folders = (entry.rstrip(os.sep) for entry in path if isinstance(entry, str))
    installed = (folder for folder in folders if os.path.basename(folder) in _INSTALLED)
    return tuple(folder + os.sep for folder in installed if os.path.realpath(folder) != os.path.realpath(own))
