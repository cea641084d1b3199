"""Copies of files that share their content with the original until one of the two is written to."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable

_FICLONE = 0x40049409


def copy_by_reference(source: str, target: str) -> None:
    """Copies the file's content and permissions; as a whole where the file system can't share it.

    Raises ``OSError``.
    """
    try:
        with open(source, "rb") as old, open(target, "wb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
    except OSError:
        shutil.copyfile(source, target)
    shutil.copymode(source, target)


def copy_whole(source: str, target: str, copy: Callable[[str, str], None]) -> None:
    """Makes the target by ``copy`` (source, target): other processes see it once it is whole, and of several the first.

    Raises what ``copy`` does.
    """
    part = f"{target}.{os.getpid()}-{threading.get_ident()}.part"
    copy(source, part)
    try:
        os.link(part, target)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        os.replace(part, target)
        return
    os.unlink(part)
