"""When a file came to be, by the file system's own record of it (statx): no program can set that, as it can the others.

A file that is older than the trial by this is the user's, whatever happened to it since: its content was changed by
another program, it was touched, or it was given another name. One that is younger is the trial's, though its time of
modification may have been copied from somewhere.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time

_LIBC = ctypes.CDLL(None)
_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BTIME = 0x800
_BIRTH_AT = 0x50
_CLOCK_REALTIME_COARSE = 5


def now() -> float:
    """The moment as file systems stamp it, in seconds since the epoch: a file made from now on isn't older."""
    try:
        return time.clock_gettime(_CLOCK_REALTIME_COARSE)
    except (AttributeError, OSError):
        return time.time()


def at(moment: float | None) -> float:
    """As ``now``, at that moment of the monotonic clock; None for now."""
    return now() - (0.0 if moment is None else max(0.0, time.monotonic() - moment))


def birth(path: str, *, follow: bool = True) -> float | None:
    """Seconds since the epoch; None where nothing is there, or where the file system doesn't keep it.

    ``follow``: of what a link leads to, and not of the link itself.
    """
    buffer = ctypes.create_string_buffer(256)
    try:
        flags = 0 if follow else _AT_SYMLINK_NOFOLLOW
        failed = _LIBC.statx(_AT_FDCWD, os.fsencode(path), flags, _STATX_BTIME, buffer)
    except (AttributeError, ValueError):
        return None  # a C library without statx, or a path that can't be one
    (mask,) = struct.unpack_from("I", buffer, 0)
    if failed or not mask & _STATX_BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("qI", buffer, _BIRTH_AT)
    return float(seconds) + float(nanoseconds) / 1e9
