"""Files in memory, for what takes this process' place or is started by it."""

from __future__ import annotations

import ctypes
import os
import tempfile

from tuner.errors import StorageError

_CLOSE_ON_EXEC = 1
"""MFD_CLOEXEC of the kernel's."""


def memory_file(name: str) -> int:
    """The descriptor of an empty one, inherited by no other program: in no folder, since all may be read-only or full,
    and gone with the last process that has it open. ``name`` is what /proc shows. Raises ``StorageError``.

    By the C library that is there: Pythons that were built with an older one, as conda's and uv's, have no
    ``os.memfd_create``. A sandbox may refuse it: then it has no name in the folder for temporary files.
    """
    create = getattr(ctypes.CDLL(None, use_errno=True), "memfd_create", None)
    descriptor = int(create(name.encode(), _CLOSE_ON_EXEC)) if create is not None else -1
    if descriptor >= 0:
        return descriptor
    try:
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
    except OSError as error:
        raise StorageError(
            f"no file can be made in memory, nor a temporary one: {error.strerror or error}",
            hint="set TMPDIR to a folder that you may write to",
        ) from error
