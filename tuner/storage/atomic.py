"""Files that survive a crash: written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tuner.errors import StorageError


def write_durably(path: Path, content: bytes) -> None:
    """Writes beside the target, syncs, renames. Raises ``StorageError`` naming the path."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would keep a shared study from its other readers
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException as error:  # an interrupt, too, must leave no temporary file
        if temporary:
            _remove(temporary)
        if not isinstance(error, OSError):
            raise
        raise StorageError(
            f"can't write {path}: {error.strerror or error}",
            hint="free some space or choose a folder that you may write to",
        ) from error


def _sync_folder(folder: Path) -> None:
    """Without it the rename itself may be lost with the power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it was renamed already, or the disk is gone: the first error is the one to tell
