"""Which memory of this process a file lies behind: to read a number there may have a page read from a disk."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_NO_FILE = b"0"


class FileBacked:
    """Reads once, when it is asked first, what is mapped where. Where the system tells nothing no file is."""

    def __init__(self) -> None:
        self._begins: list[int] | None = None
        self._ends: list[int] = []

    def holds(self, address: int) -> bool:
        """Whether a file lies behind this address."""
        if self._begins is None:
            self._begins = []
            with suppress(OSError):
                self._read()
        place = bisect_right(self._begins, address) - 1
        return place >= 0 and address < self._ends[place]

    def _read(self) -> None:
        assert self._begins is not None
        for line in _MAPS.read_bytes().splitlines():
            span, _, _, _, inode = line.split(None, 5)[:5]
            if inode != _NO_FILE:
                begin, _, end = span.partition(b"-")
                self._begins.append(int(begin, 16))
                self._ends.append(int(end, 16))
