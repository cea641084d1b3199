"""Sees that a diverted file's old version is opened: by a library that reads it past Python, or by another program.

The kernel tells (inotify); what Python opens is led to the trial's own version and never seen here.
"""

from __future__ import annotations

import ctypes
import os
import struct

_IN_OPEN = 0x20
_IN_NONBLOCK = 0o4000
_IN_CLOEXEC = 0o2000000
_MOST = 256
"""Files watched at most: a watch costs the kernel a kilobyte."""


class StaleReads:
    """Files whose old version nobody in the trial should read. Where the kernel doesn't offer it, nothing is seen."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._paths: dict[int, str] = {}
        self._alike: set[str] = set()

    def is_alike(self, path: str) -> None:
        """The trial's version holds the same as the old one, which anybody may read until ``is_written``."""
        self._alike.add(path)

    def is_written(self, path: str) -> None:
        """The trial's version is about to be written."""
        if path in self._alike:
            self._alike.remove(path)
            self.watch(path)

    def watch(self, path: str) -> None:
        """From now on the file is watched."""
        if len(self._paths) >= _MOST or path in self._alike:
            return
        try:
            libc = ctypes.CDLL(None)
            if self._descriptor is None:
                descriptor = libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
                if descriptor < 0:
                    return
                self._descriptor = descriptor
            number = libc.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_OPEN)
        except (AttributeError, OSError):
            return  # a C library without it
        if number >= 0:
            self._paths[number] = path

    def seen(self) -> list[str]:
        """The watched files that were opened by now, each once."""
        if self._descriptor is None:
            return []
        opened: dict[str, None] = {}
        try:
            while data := os.read(self._descriptor, 65536):
                at = 0
                while at < len(data):
                    number, _, _, length = struct.unpack_from("iIII", data, at)
                    at += 16 + length
                    if number in self._paths:
                        opened[self._paths[number]] = None
        except OSError:
            pass  # no more to read
        return list(opened)
