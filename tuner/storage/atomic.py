"""Files that survive a crash: written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

from tuner.errors import StorageError

_NOT_SYNCED = (errno.EINVAL, errno.EBADF, errno.ENOTSUP)


def write_named(path: Path, content: bytes) -> None:
    """As ``write_durably``, where the user named the path: a link stays one, and its target is written.

    What isn't a file (a pipe, ``/dev/null``, ``/dev/stdout``) is written to as it stands: renaming would put a file in
    its place, for every process of the machine. Raises ``StorageError`` naming the path.
    """
    try:
        if not _is_stream(path):
            write_durably(Path(os.path.realpath(path)), content)
            return
        with path.open("ab") as stream:
            stream.write(content)
    except OSError as error:
        raise _unwritten(path, error) from error


def _is_stream(path: Path) -> bool:
    """Whether what is written there goes on, to a reader or nowhere; so it does behind ``/dev/stdout``, also where a
    shell had that lead to a file, which holds lines from before.
    """
    folder = Path(os.path.realpath(path.parent))
    if folder == Path("/dev") or folder.is_relative_to("/proc"):
        return True
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


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
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"can't write {path}: {error.strerror or error}",
        hint="free some space or choose a folder that you may write to",
    )


def _sync_folder(folder: Path) -> None:
    """Without it the rename itself may be lost with the power; some network file systems sync none."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it was renamed already, or the disk is gone: the first error is the one to tell
