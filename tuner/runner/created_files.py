"""Moves the files that a trial created among the user's into the trial's folder: the next one starts as the first did.

Results of the training are moved, models above all: a script that finds one would resume from it. Data that the script
prepared for itself stay where they are: a download isn't repeated with each trial.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tuner.child.records import FirstStep
from tuner.child.wire import FILES, MADE
from tuner.storage.folder import RECORDS
from tuner.storage.records import last_written, read_records

LARGEST_RESULT_BYTES = 2**20
MOST_RESULTS = 20
"""A folder with more than that before the first step, or with files that are read again, holds data and not logs."""
LARGEST_COMPANION_BYTES = 2**25
"""A file beside a model belongs to it, such as a configuration or a tokenizer; a larger one may be data."""
MOST_KEPT_BYTES = 2**30
"""Of the files of one trial so much is kept. A study would otherwise keep a large model once a trial."""
DYING_S = 15.0
"""So long after the last line of a trial that was killed with its runner, the guard has ended the last of it."""
_TOO_LARGE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REMOVED = "removed.txt"
"""In the trial's folder: paths of what was too large to be kept."""


@dataclass
class _Created:
    """What the trial created. ``files``: path → whether it was after the first step. ``read``: files read again.

    ``models``: those that hold what is trained. ``scratch``: those that nobody wants any more.
    """

    files: dict[str, bool] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    scratch: set[str] = field(default_factory=set)

    def are_data(self, paths: Collection[str]) -> bool:
        """Whether files that were created together before the first step are what the script trains on."""
        read = any(path in self.read for path in paths)
        return read or len(paths) > MOST_RESULTS or sum(map(_size, paths)) > LARGEST_RESULT_BYTES

    def add(self, path: str, note: dict[str, object]) -> None:
        """A file that was noted, by itself or with others. Nobody wants a pipe, and where it stays none can be made."""
        if note.get("scratch") or _is_pipe(path):
            self.scratch.add(path)
        else:
            self.files[path] = bool(note["after_first_step"])
        if note.get("model"):
            self.models.add(path)

    def is_of_a_model(self, path: str) -> bool:
        """Whether it is one, or was saved beside one."""
        folders = {os.path.dirname(model) for model in self.models}
        return path in self.models or (os.path.dirname(path) in folders and _size(path) <= LARGEST_COMPANION_BYTES)


def move_created_files(trial: Path, *, keeps_data: bool = True, has_died: bool = False) -> list[str]:
    """Moves what the trial created into its folder ``trial``, below ``files``. Returns the paths where they lay.

    ``keeps_data``: what the script prepared for itself before its first step stays. ``has_died``: the trial was killed
    together with its runner, at some time; what has changed since is somebody else's and stays, also in a folder that
    the trial made: checkpoints of the training that the user ran meanwhile. No process of the trial may run any more.
    Does nothing where that was done before. Never raises: what can't be moved stays.
    """
    if not (trial / MADE).exists():
        return []
    until = last_written(trial, 0.0) + DYING_S if has_died else math.inf
    created, first_step_at = _read(trial / MADE), _first_step_at(trial) if keeps_data else 0.0
    results = {
        path for path, after_first_step in created.files.items()
        if after_first_step or _changed_at(path) > first_step_at or created.is_of_a_model(path)
    }  # fmt: skip
    early = created.files.keys() - results
    for top in (path for path in created.folders if os.path.dirname(path) not in created.folders):
        inside = set(_files_below(top)) - created.scratch
        # Created by other programs, or past Python's own open: their age decides.
        others = inside - created.files.keys()
        prepared = {p for p in others if _changed_at(p) < first_step_at and not created.is_of_a_model(p)}
        # A script that finds some of its data won't prepare the others again: all or nothing.
        if not prepared and not created.are_data(inside & early):
            results |= inside & early
        results |= others - prepared
        early -= inside
    results |= {path for path in early if not created.are_data([path])}
    for path in created.scratch:
        with contextlib.suppress(OSError):
            if _touched_at(path) <= until:
                os.unlink(path)
    moved = [path for path in sorted(results) if _touched_at(path) <= until and _move(path, trial)]
    for path in sorted(created.folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    _keep_within_bounds(trial)
    # A file at one of these paths from now on isn't this trial's.
    with contextlib.suppress(OSError):
        (trial / MADE).unlink()
    return moved


def note_missing(trial: Path, paths: Iterable[str]) -> None:
    """Has whatever comes to lie where ``paths`` lay put aside once the trial is over: files that are written past
    Python are known by no other sign. Nothing that lies there now is meant, nor what has another name: that may be
    somebody else's. Raises ``OSError``.
    """
    tops = sorted({top for path in paths if (top := _first_missing(path)) is not None})
    notes: list[dict[str, object]] = [
        {"made": os.path.join(folder, ""), "had": [], "only": name, "folder": False, "after_first_step": True}
        for folder, name in tops
    ]
    with (trial / MADE).open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(note)}\n" for note in notes)


def _first_missing(path: str) -> tuple[str, str] | None:
    """The first part of the path that doesn't lie there, as a folder that does and a name in it; None where all do."""
    if os.path.lexists(path):
        return None
    folder, name = os.path.split(path)
    return (folder, name) if os.path.isdir(folder) else _first_missing(folder)


def made_so_far(trial: Path) -> list[str]:
    """Files and folders among the user's that a trial has created by now, and that lie there."""
    created = _read(trial / MADE)
    return [path for path in sorted({*created.files, *created.folders, *created.scratch}) if os.path.lexists(path)]


def _first_step_at(trial: Path) -> float:
    """The moment of the first step, in seconds since the epoch; now where there was none.

    Told by when the last record was written down: the clock of records stands still while a machine sleeps, and begins
    anew when it is started.
    """
    with contextlib.suppress(OSError):
        entries = read_records(trial / RECORDS)
        for entry in entries:
            if isinstance(entry.record, FirstStep):
                return (trial / RECORDS).stat().st_mtime - (entries[-1].t - entry.t)
    return time.time()


def _read(path: Path) -> _Created:
    created = _Created()
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return created
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # torn by whatever ended the trial
            note = json.loads(line)
            if "read" in note:
                created.read.add(note["read"])
            elif note["folder"]:
                created.folders.add(note["made"])
            elif "had" in note:
                for made in _made_since(note["made"], note["had"], created.folders, note.get("only")):
                    created.add(made, note)
            else:
                created.add(note["made"], note)
    return created


def _made_since(prefix: str, had: Collection[str], folders: set[str], only: str | None = None) -> Iterator[str]:
    """Files whose paths begin so, but for the names that were there; ``folders`` gets the folders among them.

    ``only``: the name that is meant, None for any.
    """
    folder, begin = os.path.split(prefix)
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if not name.startswith(begin) or name in had or only not in (None, name):
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                for here, _, names in os.walk(path):
                    folders.add(here)
                    yield from (os.path.join(here, below) for below in names)
            else:
                yield path


def _files_below(folder: str) -> Iterable[str]:
    for here, folders, names in os.walk(folder):
        yield from (os.path.join(here, name) for name in names)
        yield from (path for name in folders if os.path.islink(path := os.path.join(here, name)))


def _status(path: str) -> os.stat_result | None:
    """Of the path itself, where it is a link; None where it is gone."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def _is_pipe(path: str) -> bool:
    status = _status(path)
    return status is not None and stat.S_ISFIFO(status.st_mode)


def _size(path: str) -> int:
    status = _status(path)
    return status.st_size if status is not None else 0


def _changed_at(path: str) -> float:
    status = _status(path)
    return status.st_mtime if status is not None else 0.0


def _touched_at(path: str) -> float:
    """When it, or its name, was changed last: a copy may have the age of what was copied."""
    status = _status(path)
    return status.st_ctime if status is not None else 0.0


def _move(path: str, trial: Path) -> bool:
    """Whether the file or link existed and is gone from there: in the trial's folder, unless it is too large."""
    target, status = trial / FILES / path.lstrip(os.sep), _status(path)
    if status is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        return False
    try:
        if status.st_size > MOST_KEPT_BYTES:
            _remove(Path(path), path, trial)
            return True
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
    except OSError as error:
        return _could_not_move(path, target, trial, error)
    return True


def _could_not_move(path: str, target: Path, trial: Path, error: OSError) -> bool:
    """What the trial's own disk is too small for goes as what is too large: the next trial would resume from it.

    Whether it is gone. No part of it stays in the trial's folder.
    """
    if not os.path.lexists(path):
        return False
    with contextlib.suppress(OSError):
        target.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        if error.errno in _TOO_LARGE:
            _remove(Path(path), path, trial)
    return not os.path.lexists(path)


def _keep_within_bounds(trial: Path) -> None:
    """Removes the largest of the trial's files until the others are no more than are kept."""
    kept = sorted(((_size(path), path) for path in _files_below(str(trial / FILES))), reverse=True)
    too_much = sum(size for size, _ in kept) - MOST_KEPT_BYTES
    for size, path in kept:
        if too_much <= 0:
            break
        with contextlib.suppress(OSError):
            _remove(Path(path), os.sep + os.path.relpath(path, trial / FILES), trial)
            too_much -= size


def _remove(file: Path, meant: str, trial: Path) -> None:
    """``meant``: the path at which the script has it."""
    size = _size(str(file))
    file.unlink()
    with (trial / REMOVED).open("a", encoding="utf-8") as listed:
        listed.write(f"{size}\t{meant}\n")
