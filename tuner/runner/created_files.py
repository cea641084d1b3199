"""Moves the files that a trial created among the user's into the trial's folder: the next one starts as the first did.

Results of the training are moved. Data that the script prepared for itself stay where they are: a download isn't
repeated with each trial.
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
"""A folder with more than that before the first step, or with files that are read again, holds data and not logs."""


@dataclass
class _Created:
    """What the trial created. ``files``: path → whether it was after the first step. ``read``: files read again."""

    files: dict[str, bool] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)

    def are_data(self, paths: Collection[str]) -> bool:
        """Whether files that were created together before the first step are what the script trains on."""
        read = any(path in self.read for path in paths)
        return read or len(paths) > MOST_RESULTS or sum(map(_size, paths)) > LARGEST_RESULT_BYTES


def move_created_files(trial: Path, *, keeps_data: bool = True) -> list[str]:
    """Moves what the trial created into its folder ``trial``, below ``files``. Returns the paths where they lay.

    ``keeps_data``: what the script prepared for itself before its first step stays. No process of the trial may run any
    more. Does nothing where that was done before. Never raises: what can't be moved stays.
    """
    if not (trial / MADE).exists():
        return []
    created, first_step_at = _read(trial / MADE), _first_step_at(trial) if keeps_data else 0.0
    results = {path for path, after_first_step in created.files.items() if after_first_step}
    early = created.files.keys() - results
    for top in (path for path in created.folders if os.path.dirname(path) not in created.folders):
        inside = set(_files_below(top))
        # Created by other programs, or past Python's own open: their age decides.
        prepared = {path for path in inside - created.files.keys() if _changed_at(path) < first_step_at}
        # A script that finds some of its data won't prepare the others again: all or nothing.
        if not prepared and not created.are_data(inside & early):
            results |= inside & early
        results |= inside - created.files.keys() - prepared
        early -= inside
    results |= {path for path in early if not created.are_data([path])}
    moved = [path for path in sorted(results) if _move(path, trial / FILES)]
    for path in sorted(created.folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    # A file at one of these paths from now on isn't this trial's.
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


def _read(path: Path) -> _Created:
    created = _Created()
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return created
    for line in lines:
        with contextlib.suppress(ValueError, KeyError):  # torn by whatever ended the trial
            note = json.loads(line)
            if "read" in note:
                created.read.add(note["read"])
            elif note["folder"]:
                created.folders.add(note["made"])
            else:
                created.files[note["made"]] = note["after_first_step"]
    return created


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
    """Whether the file existed and was moved to the folder."""
    target, status = folder / path.lstrip(os.sep), _status(path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
    except OSError:
        return False
    return True
