"""Puts aside what a trial left among the user's files, so that the next one finds them as the first one did.

What came out of the training goes to the trial's folder. Data that the script made for itself stay where they are: a
download isn't repeated with each trial.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tuner.child.records import FirstStep
from tuner.child.wire import FILES, MADE
from tuner.storage.folder import RECORDS
from tuner.storage.records import read_records

LARGEST_RESULT_BYTES = 2**20
MOST_RESULTS = 20
"""What is more than that in a folder before the first step, or is read again, is taken for data and not for logs."""


@dataclass
class _Made:
    """Files with whether they were made after the first step, folders, and which files were read again."""

    files: dict[str, bool] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)

    def are_data(self, paths: Collection[str]) -> bool:
        """Whether files that were made together before the first step are what the script trains on."""
        read = any(path in self.read for path in paths)
        return read or len(paths) > MOST_RESULTS or sum(map(_size, paths)) > LARGEST_RESULT_BYTES


def put_aside(trial: Path) -> list[str]:
    """Moves what the trial with this folder left into it; gives the paths. Nothing may run of the trial any more.

    Does nothing where that was done before.
    """
    if not (trial / MADE).exists():
        return []
    made, first_step_at = _read(trial / MADE), _first_step_at(trial)
    results = {path for path, after_first_step in made.files.items() if after_first_step}
    early = made.files.keys() - results
    for top in (path for path in made.folders if os.path.dirname(path) not in made.folders):
        inside = set(_files_below(top))
        # Made by other programs, or past Python's own open: only their age tells.
        untold = {path for path in inside - made.files.keys() if _changed_at(path) < first_step_at}
        # Whoever finds some of its data there won't make the others again: all or nothing.
        if not untold and not made.are_data(inside & early):
            results |= inside & early
        results |= inside - made.files.keys() - untold
        early -= inside
    results |= {path for path in early if not made.are_data([path])}
    moved = [path for path in sorted(results) if _move(path, trial / FILES)]
    for path in sorted(made.folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    # What stands at one of these paths from now on is somebody else's.
    with contextlib.suppress(OSError):
        (trial / MADE).unlink()
    return moved


def _first_step_at(trial: Path) -> float:
    """The moment of the first step, in seconds since the epoch; now where there was none."""
    with contextlib.suppress(OSError):
        for entry in read_records(trial / RECORDS):
            if isinstance(entry.record, FirstStep):
                return time.time() - (time.monotonic() - entry.t)
    return time.time()


def _read(path: Path) -> _Made:
    made = _Made()
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return made
    for line in lines:
        with contextlib.suppress(ValueError, KeyError):  # torn by whatever ended the trial
            note = json.loads(line)
            if "read" in note:
                made.read.add(note["read"])
            elif note["folder"]:
                made.folders.add(note["made"])
            else:
                made.files[note["made"]] = note["after_first_step"]
    return made


def _files_below(folder: str) -> Iterable[str]:
    for here, _, names in os.walk(folder):
        yield from (os.path.join(here, name) for name in names)


def _status(path: str) -> os.stat_result | None:
    """Of the path itself, where it is a link; None where it is gone."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def _size(path: str) -> int:
    status = _status(path)
    return status.st_size if status is not None else 0


def _changed_at(path: str) -> float:
    status = _status(path)
    return status.st_mtime if status is not None else 0.0


def _move(path: str, folder: Path) -> bool:
    """Whether the file was there and lies in the folder now. What can't be moved stays."""
    target, status = folder / path.lstrip(os.sep), _status(path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
    except OSError:
        return False
    return True
