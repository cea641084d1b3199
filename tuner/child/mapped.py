"""Large files of the user's that are mapped into memory for writing, by a library's own call: they aren't copied."""

from __future__ import annotations

import os

from .files import Overlay

_MUCH_BYTES = 2**28
"""A file of the user's beyond that isn't copied for a script that may only read it."""


def is_kept_private(overlay: Overlay, path: object) -> bool:
    """Whether the file is to be mapped privately, which is said: what the script writes to it stays in its memory."""
    name = overlay.absolute(path)
    if name is None or not _is_much(overlay, name):
        return False
    overlay.keeps(name, f"{name} is opened for writing: what is written to it stays in memory, and is never read back")
    return True


def _is_much(overlay: Overlay, name: str) -> bool:
    with overlay.working():
        if overlay.view(name) != name or not overlay.is_users(name):
            return False
        return os.path.getsize(name) > _MUCH_BYTES
