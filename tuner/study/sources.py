"""Watches the sources of a study while it runs: figures of two versions of a script prove nothing of either."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from tuner.errors import StudyMismatchError
from tuner.study.plan import StudyPlan

_Mark = tuple[int, int, int]
"""What changes with a file: when it was written, its size, its place on the disk."""


class Sources:
    """The script and its own modules, as they were when the study's process began. A file is read when it changed."""

    def __init__(self, plan: StudyPlan) -> None:
        self._script = plan.source
        self._sha256 = plan.script.sha256
        self._folder = plan.folder
        self._seen: dict[Path, _Mark] = {}

    def check(self, modules: Mapping[str, str]) -> None:
        """Raises ``StudyMismatchError`` naming what was edited, or that the script is gone. ``modules``: path from the
        script's folder → SHA-256.

        A module that is gone isn't named: trials say so themselves, and one that the script makes is moved after each.
        """
        if self._script is None or not self._sha256:
            return
        if not os.path.lexists(self._script):
            raise StudyMismatchError(
                f"moved or removed while the study in {self._folder} ran: {self._script}",
                hint="put it back and give the same command again, it resumes and nothing is lost",
            )
        folder = self._script.resolve().parent
        edited = [] if self._is_as_before(self._script, self._sha256) else [str(self._script)]
        edited += [name for name, before in modules.items() if not self._is_module_as_before(folder / name, before)]
        if edited:
            raise StudyMismatchError(
                f"edited while the study in {self._folder} ran: {', '.join(edited)}",
                hint="undo the edit and give the same command again, it resumes and nothing is lost; or tune the new"
                " version from the start with --new",
            )

    def _is_module_as_before(self, file: Path, before: str) -> bool:
        return not file.is_file() or self._is_as_before(file, before)

    def _is_as_before(self, file: Path, before: str) -> bool:
        mark = _mark_of(file)
        if mark is not None and self._seen.get(file) == mark:
            return True
        if mark is None or _sha256(file) != before:
            return False
        self._seen[file] = mark
        return True


def _mark_of(file: Path) -> _Mark | None:
    try:
        stat = os.stat(file)
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _sha256(file: Path) -> str:
    """The content's hash; "" where it can't be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""
