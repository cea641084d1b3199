"""Sends records to the parent."""

from __future__ import annotations

import os
import time

from . import wire
from .records import Record


class Recorder:
    """Writes records to an inherited descriptor; in a forked worker, or once the parent is gone, it is silent."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._pid = os.getpid()

    def emit(self, record: Record) -> None:
        """Sends one record at once: what was measured survives whatever the script does next."""
        if self._descriptor is None or os.getpid() != self._pid:
            return
        line = wire.encode(record, time.monotonic())
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            self._descriptor = None
