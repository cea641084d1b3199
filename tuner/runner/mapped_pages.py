"""Pages of files that a process and the one that it was forked from have both mapped, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ENTRY_BYTES = 8
_OF_A_FILE = 0xA0
"""In the last byte of a page's entry: it is present, and none of the process's own (the kernel's pagemap.rst)."""
MOST_BYTES_UNSEEN = 2 * 2**20
"""What a process may map of files beside what it had mapped as they were read: to read them takes 10 to 30 ms."""

LARGEST_BYTES = 4 * 2**30
"""Of what is mapped at once and looked at: libraries are smaller, and of data a look would take too long."""


class SharedPages:
    """Pages of files that forks have mapped that the process they were forked from has mapped, too.

    ``readings``: how often they were read from the kernel so far; ``newest_bytes``: how many, by the last of them.
    """

    def __init__(self) -> None:
        self.readings = self.newest_bytes = 0
        self._read: dict[int, tuple[int, int]] = {}

    def read(self, pid: int, other: int, mapped_bytes: int) -> int:
        """How many bytes, as of a reading in which the fork had as many of files mapped, within a few MiB."""
        at, shared = self._read.get(pid, (-MOST_BYTES_UNSEEN, 0))
        if abs(mapped_bytes - at) >= MOST_BYTES_UNSEEN:
            shared = shared_file_bytes(pid, other) or shared  # of one that ends meanwhile nothing can be read
            self._read[pid] = mapped_bytes, shared
            self.readings += 1
        self.newest_bytes = min(shared, mapped_bytes)
        return self.newest_bytes


def shared_file_bytes(pid: int, other: int) -> int:
    """How much of files is mapped in both at the same addresses, as only a fork and its parent have them.

    0 where the kernel doesn't tell, or one of them is gone.
    """
    try:
        mapped = dict(_file_mappings(pid))
        places = [place for place, file in _file_mappings(other) if mapped.get(place) == file]
        with open(f"/proc/{pid}/pagemap", "rb") as own, open(f"/proc/{other}/pagemap", "rb") as theirs:
            return sum(_shared_pages(own.fileno(), theirs.fileno(), *place) for place in places) * PAGE_BYTES
    except OSError:
        return 0


def _file_mappings(pid: int) -> Iterator[tuple[tuple[int, int], tuple[str, ...]]]:
    """The begin and end of each mapping of a file, and which part of which file it is."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            addresses, _, offset, device, inode = line.split(maxsplit=5)[:5]
            begin, end = (int(address, 16) for address in addresses.split("-"))
            if inode != "0" and end - begin <= LARGEST_BYTES:
                yield (begin, end), (offset, device, inode)


def _shared_pages(own: int, theirs: int, begin: int, end: int) -> int:
    size, at = (end - begin) // PAGE_BYTES * _ENTRY_BYTES, begin // PAGE_BYTES * _ENTRY_BYTES
    entries = (np.frombuffer(os.pread(each, size, at), np.uint8) for each in (own, theirs))
    one, other = (each[_ENTRY_BYTES - 1 :: _ENTRY_BYTES] for each in entries)
    length = min(len(one), len(other))  # one of them may be ending
    return int(np.count_nonzero(one[:length] & other[:length] & _OF_A_FILE == _OF_A_FILE))
