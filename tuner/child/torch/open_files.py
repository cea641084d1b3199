"""Files and databases that data hold open: workers that are forked share the place at which each of them is read.

One worker's seek moves what another one reads next: samples are mixed up, and mostly nothing raises an error.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ..data_state import values
from .reached import functions

CONNECTIONS = frozenset({"sqlite3", "lmdb", "h5py", "netCDF4", "tables", "psycopg", "psycopg2", "pymysql"})
"""Packages whose objects are open databases or files, which tell no descriptor."""
OPEN = (
    "{} is open when the loader is made, and workers would share the place at which it is read (where it is opened with"
    " the first sample, each worker has its own)"
)
_OF_EACH_PROCESS = frozenset({"getpid", "pread", "preadv"})
"""Names in code that knows of several processes, or reads without a place of the file's own."""
_STANDARD = 2
"""The last descriptor of what the process prints to."""


def is_open(value: object) -> bool:
    """Whether this is a file that is open to be read, or a connection to a database."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if package in CONNECTIONS:
        return package != "h5py" or bool(value)  # which is false of what was closed
    if isinstance(value, io.IOBase):
        with suppress(OSError, ValueError):  # it lies in memory, or is closed
            return value.fileno() > _STANDARD and value.readable()
        return False
    return callable(getattr(kind, "fileno", None))


def opened(data: Mapping[str, object], methods: Sequence[str]) -> str:
    """The path of what is open among these data, "" where nothing is, or where the code that reads them sees to it.

    ``methods``: those by which the data are read.
    """
    held = list(values(data))
    found = next((path for path, value, _ in held if is_open(value)), "")
    if not found:
        return ""
    reading = functions([value for _, value, _ in held], methods)
    return "" if any(not _OF_EACH_PROCESS.isdisjoint(names) for _, names in reading) else found
