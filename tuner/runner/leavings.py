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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.child.wire import MADE

FILES = "files"
"""The folder in a trial's own that holds what it would have left elsewhere."""
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


def put_aside(trial: Path, records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Moves what the trial with this folder left into it; gives the paths. Nothing may run of the trial any more.

    ``records`` are the trial's own, whose ``t`` is the monotonic clock of this machine in seconds.
    """
    made = _read(trial / MADE)
    first_step_t = next((float(r["t"]) for r in records if r["kind"] == "first_step"), None)
    first_step_at = time.time() - (time.monotonic() - first_step_t) if first_step_t is not None else time.time()
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


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _changed_at(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _move(path: str, folder: Path) -> bool:
    """Whether the file was there and lies in the folder now. What can't be moved stays."""
    target = folder / path.lstrip(os.sep)
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
    except OSError:
        return False
    return True
