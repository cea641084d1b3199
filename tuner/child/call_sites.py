"""Where in the user's own files a call comes from: what tells one loader, dataset or loss of a script from another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

_LIBRARIES = ("site-packages", "dist-packages", "lib/python", "<frozen", "<string>", "__autograph_generated")


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
    user = [(n, line) for n, line in frames() if not any(part in n for part in _LIBRARIES)]
    return "<".join(f"{n.rsplit('/', 1)[-1]}:{line}" for n, line in user[:6]) or "library"


def inside_library() -> bool:
    """Whether an installed package makes the call, on the user's behalf."""
    caller = next((name for name, _ in frames()), "")
    return any(part in caller for part in _LIBRARIES)
