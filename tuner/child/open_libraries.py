"""Which descriptors a process has open, but those by which a library keeps its own file.

libffi does, where it is built to (by Fedora, conda and newer versions of Debian, say): each table of functions that C
calls, as ctypes makes them, is mapped from its file. Such a descriptor is no file of the program's, and a fork needs it
as a fresh process does.
"""

from __future__ import annotations

import os


def of_libraries() -> set[int]:
    """Descriptors of files that are mapped as code of this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        fields = [line.rstrip("\n").split(None, 5) for line in file]
    code = {each[5] for each in fields if len(each) == 6 and "x" in each[1]}
    return {number for number, target in _open().items() if target in code}


def of_others() -> set[int]:
    """All others."""
    return {*_open()} - of_libraries()


def _open() -> dict[int, str]:
    """Descriptor → what it is of."""
    found = dict[int, str]()
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass  # that of the listing itself
    return found
