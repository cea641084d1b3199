"""Finds studies on disk and opens them for reading."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import StorageError
from tuner.model import Trial
from tuner.storage.database import Repository, StudyRecord, TrialState, holds_results, storage_error
from tuner.storage.folder import DATABASE, LOCK, trial_numbers
from tuner.storage.lock import FolderLock, born, has_ended

_DEEPEST = 4
"""Folders that lie deeper below the one that is searched aren't looked into: a dataset's tree holds millions."""

_MOST_NAMED = 8
_FILES = (DATABASE, f"{DATABASE}-wal")
"""What SQLite keeps a database in, that is read at once."""
_COPIES = 5
"""So often a database that is being written is copied again before that is given up."""


@dataclass(frozen=True)
class StoredStudy:
    """A study as it is stored in ``folder``; ``trials`` are the finished ones, by number.

    ``state`` is "running", "finished", or "stopped": the same command resumes it. ``numbers`` are those of all trials,
    also of those that wait or run, and ``begun`` those that had a folder before the database was read.
    ``holds_results`` is as the function of that name says.
    """

    folder: Path
    record: StudyRecord
    trials: tuple[Trial, ...]
    state: str
    numbers: tuple[int, ...] = ()
    begun: tuple[int, ...] = ()
    holds_results: bool = True


def open_study(name: str | None) -> StoredStudy:
    """Reads the study in the folder of that name, or the only one below it; None is the current folder.

    Raises ``StorageError`` where there is none or more than one, and as ``read_study``.
    """
    folder = Path(name or ".")
    if not folder.is_dir():
        raise StorageError(f"there is no folder {folder}", hint="paths start at the current folder")
    if (folder / DATABASE).is_file():
        return read_study(folder)
    below = list(find_studies(folder))
    if len(below) == 1:
        return read_study(below[0])
    if below:
        names = ", ".join(map(str, below[:_MOST_NAMED])) + (", ..." if len(below) > _MOST_NAMED else "")
        hint = f"name one: autotune trials DIR; autotune studies {folder} lists them"
        raise StorageError(f"there are {len(below)} studies in {folder}: {names}", hint=hint)
    raise StorageError(f"there is no study in {folder}", hint="autotune studies DIR lists the studies below a folder")


class NothingStoredError(StorageError):
    """A database without a study, such as that of one which was killed as it began: the next one begins in it."""


def read_study(folder: Path) -> StoredStudy:
    """Reads the study of a folder that holds a database, which is migrated where an earlier version wrote it.

    One that can't be written is read, and migrated, as a copy. Raises ``NothingStoredError`` where it holds none,
    ``StorageError`` where the database can't be read, or would have to be migrated and is in use by a running study.
    """
    begun = tuple(trial_numbers(folder))
    with _opened(folder) as repository:
        studies = repository.studies()
        if not studies:
            raise NothingStoredError(f"{folder / DATABASE} holds no study", hint="autotune study SCRIPT starts one")
        record = studies[-1]
        state = record.state if record.state == "finished" else "running" if is_held(folder) else "stopped"
        trials = repository.records(record.id)
        finished = tuple(one.trial for one in trials if one.state is TrialState.FINISHED)
        numbers = tuple(one.trial.number for one in trials)
        return StoredStudy(folder, record, finished, state, numbers, begun, holds_results(trials))


@contextmanager
def _opened(folder: Path) -> Iterator[Repository]:
    """The repository in the folder, or in a copy of its database: SQLite's log ahead is written also to read."""
    database = folder.absolute() / DATABASE
    if os.access(folder, os.W_OK) and os.access(database, os.W_OK):
        with closing(Repository(f"sqlite:///{database}", FolderLock(folder))) as repository:
            yield repository
        return
    try:
        with tempfile.TemporaryDirectory(prefix="autotune-") as there:
            _copy(folder, Path(there))
            with closing(Repository(f"sqlite:///{Path(there) / DATABASE}", place=str(database))) as repository:
                yield repository
    except OSError as error:
        raise storage_error(error, str(database)) from error


def _copy(folder: Path, there: Path) -> None:
    """The database with its log as they were at one time. Raises ``OSError`` where they don't stay as they are."""
    for _ in range(_COPIES):
        with suppress(FileNotFoundError):  # the log is taken away as a study ends
            before = _written(folder)
            for name in _FILES:
                (there / name).unlink(missing_ok=True)
                if name in before:
                    shutil.copyfile(folder / name, there / name)
            if _written(folder) == before:
                return
    raise BlockingIOError("it changes while it is read")


def _written(folder: Path) -> dict[str, tuple[int, int]]:
    """Of each of the database's files that is there its size, and when it was written."""
    statuses = {name: (folder / name).stat() for name in _FILES if (folder / name).exists()}
    return {name: (status.st_size, status.st_mtime_ns) for name, status in statuses.items()}


def is_held(folder: Path) -> bool:
    """Whether the process that the folder's lock names is alive. Doesn't take the lock, which a study may want."""
    try:
        holder = json.loads((folder / LOCK).read_bytes())
        if holder["host"] != socket.gethostname():
            return True  # nobody here can tell
        pid = int(holder["pid"])
        if pid <= 0:
            return False  # of a signal it would mean a group of processes
        if (began := holder.get("born")) and born(pid) not in ("", began):
            return False  # the pid of one that was killed, which another process has by now, maybe another user's
        if has_ended(pid):
            return False
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False
    return True


def find_studies(root: Path) -> Iterator[Path]:
    """The folders below ``root`` that hold a study, in order of their names."""
    depth = len(root.parts)
    for folder, children, files in os.walk(root):
        here = Path(folder)
        if DATABASE in files:
            children.clear()
            yield here
            continue
        children[:] = sorted(c for c in children if not c.startswith(".") and len(here.parts) - depth < _DEEPEST)
