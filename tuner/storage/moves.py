"""Folders of trials that change their places: a run that was disturbed is kept beside the one that counts."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from tuner.errors import StorageError
from tuner.storage.folder import check_there


def place_beside(folder: Path, name: str) -> Path:
    """A path beside a trial's folder at which nothing lies."""
    place = folder.with_name(f"{folder.name}.{name}")
    shutil.rmtree(place, ignore_errors=True)
    return place


@contextlib.contextmanager
def moving(study: Path) -> Iterator[None]:
    """Raises ``StorageError`` where a trial's folder can't be moved: it is gone, or something lies in its way."""
    try:
        yield
    except OSError as error:
        check_there(study)
        raise StorageError(
            f"can't move {error.filename} to {error.filename2}: {error.strerror}",
            hint="leave what a study keeps in its folder to it, then run the same command: it resumes",
        ) from error


def swap_folders(one: Path, other: Path) -> None:
    """Exchanges the names of two folders."""
    between = one.with_name(f"{one.name}.swap")
    one.rename(between)
    other.rename(one)
    between.rename(other)
