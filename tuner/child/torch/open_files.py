"""Files and databases that data hold open: workers that are forked share the place at which each of them is read.

One worker's seek moves what another one reads next: samples are mixed up, and mostly nothing raises an error.
"""

from __future__ import annotations

import gc
import io
import os
import stat
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..data_state import caching, values
from .reached import functions, uses

CONNECTIONS = frozenset({"sqlite3", "lmdb", "h5py", "netCDF4", "tables", "psycopg", "psycopg2", "pymysql"})
"""Packages whose objects are open databases or files, which tell no descriptor."""
OPEN = (
    "{} is open when the loader is made, and workers would share the place at which it is read (where it is opened with"
    " the first sample, each worker has its own)"
)
_OF_EACH_PROCESS = frozenset({"getpid", "pread", "preadv"})
"""Names in code that knows of several processes, or reads without a place of the file's own."""
_OPENS = frozenset({"open", "File", "ZipFile", "connect", "Dataset", "open_file"})
"""Names by which a worker that asks which one it is opens what is its own."""
_MOVES = "lseek"
"""The name in code that moves the place of a descriptor."""
_STANDARD = 2
"""The last descriptor of what the process prints to."""


def is_open(value: object) -> bool:
    """Whether this is a file that is open to be read, or a connection to a database."""
    kind = type(value)
    package = _package_of(kind)
    if package in CONNECTIONS:
        return not isinstance(value, (tuple, list, dict)) and kind.__name__ != "Row" and not _is_closed(value, package)
    if isinstance(value, io.IOBase):
        with suppress(OSError, ValueError):  # it lies in memory, or is closed
            return value.fileno() > _STANDARD and value.readable()
        return False
    return callable(getattr(kind, "fileno", None))


def _package_of(kind: type) -> str:
    """LMDB's classes say that they are Python's own."""
    package = kind.__module__.partition(".")[0]
    is_lmdb = package == "builtins" and getattr(sys.modules.get("lmdb"), kind.__name__, None) is kind
    return "lmdb" if is_lmdb else package


def _is_closed(value: Any, package: str) -> bool:
    """Whether an object of a database was closed, as far as it tells that."""
    if package == "h5py":
        return not value
    try:
        if package == "lmdb":
            (value.flags if hasattr(value, "flags") else value.id)()  # raises an error once it is closed
        _ = value.total_changes  # of a connection of sqlite3, which raises an error once it is closed
    except AttributeError:
        pass
    except Exception:  # of several databases
        return True
    still_open = getattr(value, "isopen", None)
    return bool(getattr(value, "closed", False)) or (callable(still_open) and not still_open())


def _is_used(path: str, holder: object, data: Mapping[str, object]) -> bool:
    """Whether code that reads the data names this, and what it lies in among them: a file that was read through as the
    data were made is no matter to workers.
    """
    root, _, below = path.partition(".")
    first = below.partition(".")[0].partition("[")[0]
    return uses(holder, path.rpartition(".")[2]) and (not first or root not in data or uses(data[root], first))


def opened(data: Mapping[str, object], methods: Sequence[str]) -> str:
    """The path of what is open among these data, "" where nothing is, or where the code that reads them sees to it.

    ``methods``: those by which the data are read.
    """
    held = list(values(data))
    reading = [names for _, names in functions([value for _, value, _ in held], methods)]
    if any(map(_knows_processes, reading)):
        return ""
    moves = any(_MOVES in names for names in reading)
    used = ((path, value) for path, value, holder in held if _is_used(path, holder, data))
    for path, value in used:
        if is_open(value):
            return path
        if moves and _is_descriptor(value):
            return f"{path} as a descriptor"
    return next((path for path, value in _cached(held) if is_open(value)), "")


def _cached(held: Collection[tuple[str, object, object]]) -> Iterator[tuple[str, object]]:
    """Path and value of what functions with ``functools.lru_cache`` gave before, and of its parts."""
    seen: set[int] = set()
    for path, value, _ in held:
        for name, cache in caching(value):
            if id(cache) in seen:
                continue  # that of a class, of which many are held
            seen.add(id(cache))
            given = [x for each in gc.get_referents(cache) for x in (each.values() if type(each) is dict else [each])]
            yield from ((where, part) for where, part, _ in values({f"what {path}{name} gave": given}))


def _is_descriptor(value: object) -> bool:
    """Whether this is the number of a file that the process has open."""
    with suppress(OSError, OverflowError):
        return type(value) is int and value > _STANDARD and stat.S_ISREG(os.fstat(value).st_mode)
    return False


def _knows_processes(names: Collection[str]) -> bool:
    """Whether code with these names reads for each process by itself."""
    opens_by_worker = "get_worker_info" in names and not _OPENS.isdisjoint(names)
    return opens_by_worker or not _OF_EACH_PROCESS.isdisjoint(names)
