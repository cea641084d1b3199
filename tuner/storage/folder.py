"""Names of the files and folders in a study's folder, and in the folder of each of its trials."""

from __future__ import annotations

import os
from pathlib import Path

from tuner.errors import StorageError

# In a study's folder.
DATABASE = "study.db"
LOCK = ".lock"
TRIALS = "trials"
PROBE = "probe"
COMPILE_CACHE = "compile-cache"
CHECKS = "checks"
STANDING = "standing"
FAULT = "fault.txt"

# In a trial's folder; what the child keeps there besides is named in ``tuner.child.wire``.
REQUEST = "request.json"
RECORDS = "records.jsonl"
REFERENCE = "reference.jsonl"
REFERENCE_RESOURCES = "reference-resources.jsonl"
LATE_RECORDS = "late.jsonl"
RESOURCES = "resources.jsonl"
LOG = "log.txt"
RANK_LOG = "log-{}.txt"
"""Of several ranks: what all but rank 0 printed."""
OUTCOME = "outcome.json"


def trial_folder(study: Path, number: int) -> Path:
    """Where the trial of that number keeps its files, in the study's folder."""
    return study / TRIALS / f"{number:04d}"


def trial_numbers(study: Path) -> list[int]:
    """The trials that have a folder in the study's, as far as this user may see them."""
    try:
        return sorted(int(name) for name in os.listdir(study / TRIALS) if name.isdecimal())
    except OSError:
        return []


def check_there(study: Path) -> None:
    """Raises ``StorageError`` where the study's folder, which it works in, was removed: nobody wants another one."""
    if not study.is_dir():
        raise StorageError(
            f"can't use {study}: it was removed while it was in use",
            hint="run the study again, and leave its folder where it is meanwhile",
        )


def make_private(folder: Path) -> None:
    """Makes the folder, and the one that it lies in, for this user alone; one that exists is closed to others.

    What a trial leaves holds the script's arguments and all that it prints. Raises ``OSError``.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
