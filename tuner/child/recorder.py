"""Sends records to the parent."""

from __future__ import annotations

import os
import sys
import time

from . import wire
from .records import Record


class Recorder:
    """Writes records to an inherited descriptor; in a forked worker, or once the parent is gone, it is silent."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._pid = os.getpid()
        self._pipe = None if descriptor is None else _opened_as(descriptor)

    def emit(self, record: Record) -> None:
        """Sends one record at once: what was measured survives whatever the script does next."""
        if self._descriptor is None or os.getpid() != self._pid:
            return
        if _opened_as(self._descriptor) != self._pipe:
            # A daemon closes all that it doesn't know: the number may be that of a file of the script's by now.
            number, self._descriptor = self._descriptor, None
            if sys.stderr is not None:
                print(
                    f"autotune: the script has closed descriptor {number}, which was autotune's: nothing is measured"
                    " any more", file=sys.stderr,
                )  # fmt: skip
            return
        line = wire.encode(record, time.monotonic())
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            self._descriptor = None


def _opened_as(descriptor: int) -> tuple[int, int] | None:
    """What tells the file that a descriptor has open from others; None where it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
