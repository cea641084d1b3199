"""Finds studies on disk and opens them for reading."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import StorageError
from tuner.model import Trial
from tuner.plan import DATABASE
from tuner.storage import Repository, StudyRecord

# A dataset's tree holds millions of entries and no studies.
_DEEPEST = 4


@dataclass(frozen=True)
class StoredStudy:
    """A study as it lies in its folder; ``trials`` are the finished ones."""

    folder: Path
    record: StudyRecord
    trials: tuple[Trial, ...]


def open_study(given: str | None) -> StoredStudy:
    """The study in a folder (the current one without a name), or the only one below it. Raises ``StorageError``."""
    folder = Path(given or ".")
    if (folder / DATABASE).is_file():
        return read_study(folder)
    below = list(find_studies(folder))
    if len(below) == 1:
        return read_study(below[0])
    if below:
        names = ", ".join(map(str, below))
        raise StorageError(f"there are {len(below)} studies in {folder}: {names}", hint="name one: autotune trials DIR")
    raise StorageError(f"there is no study in {folder}", hint="autotune studies DIR lists the studies below a folder")


def read_study(folder: Path) -> StoredStudy:
    """The study of a folder that holds a database. Raises ``StorageError``."""
    repository = Repository(f"sqlite:///{folder.absolute() / DATABASE}")
    try:
        studies = repository.studies()
        if not studies:
            raise StorageError(f"{folder / DATABASE} holds no study", hint="autotune study SCRIPT starts one")
        return StoredStudy(folder, studies[-1], repository.trials(studies[-1].id))
    finally:
        repository.close()


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
