"""Writes down which files and folders the trial makes among the user's: the parent puts them aside once it is over.

What is new is written where the script says, for whoever reads it again. A script that wants an empty folder, or one
that isn't there yet, or that resumes from what it finds, would otherwise run once and never again the same. What is
written down lies on disk before the file does, so that it is known even if trial and study are killed together.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from types import FrameType

from .places import entry
from .wire import MADE

_lstat, _listdir = os.lstat, os.listdir
"""As they were: what a script removed of the user's isn't there for it, and lies there still."""
_MOST = 10_000
"""So many are noted at most: a script that writes a file a sample must not be slowed down by it."""

_MANY = 16
"""So many files that are made while samples are read are no accident: a batch or more of them."""
_FEWEST_KEPT = _MANY // 4
_OF_A_SAMPLE = ("__getitem__", "__getitems__")
WRITES_ROWS = (
    "reading a sample writes a file, as {}: later epochs, which find these there, may be faster than what is measured,"
    " since each trial begins without them"
)
"""Said of the data by the path of one file: as of data that keep what is read in memory (``torch/copies.py``)."""


class CreatedFiles:
    """Notes each path once, before anything is written there, in ``MADE`` in the trial's folder.

    ``is_watched``: whether a path lies among the user's files, and not where trials may write what they like; the
    second argument says whether a model is saved there. ``has_stepped``: whether a step was taken; what comes later may
    be a result, what comes earlier prepared data. ``remark``: is told, once, of data that write what they make.
    """

    def __init__(
        self, folder: str, is_watched: Callable[[str, bool], bool], has_stepped: Callable[[], bool],
        remark: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self._path = os.path.join(folder, MADE)
        self._is_watched = is_watched
        self._has_stepped = has_stepped
        self._remark = remark
        self._rows: list[str] = []
        # Paths with the links in their folders resolved: a link may lead elsewhere later.
        self._made: set[str] = set()
        self._models: set[str] = set()
        self._read: set[str] = set()
        self._descriptor: int | None = None

    def will_make(self, path: str | None, *, folder: bool = False, model: bool = False) -> None:
        """A file (or a folder) is about to be written at the path; one that is there already is the user's.

        ``model``: it holds what was trained, or what training begins with. It is never taken for data.
        """
        if path is None or _is_there(path) or not self._may_note(path, model):
            return
        name = entry(path)
        self._made.add(name)
        if model:
            self._models.add(name)
        has_stepped = self._has_stepped()
        self._note(made=name, folder=folder, model=model, after_first_step=has_stepped)
        if has_stepped and len(self._rows) < _MANY and _is_a_sample_read():
            self._rows.append(name)
            # What a sample only goes through is gone by now, and half of what is renamed when it is whole.
            kept = [row for row in self._rows if _is_there(row)] if len(self._rows) == _MANY else []
            if len(kept) >= _FEWEST_KEPT:
                self._remark(WRITES_ROWS.format(kept[0]))

    def will_make_all(self, prefix: str, *, model: bool = False, scratch: bool = False) -> None:
        """Files whose names a library chooses are about to be written; their paths begin with ``prefix``.

        A prefix that ends in a slash means whatever is new in that folder. ``scratch``: nobody wants them once the
        trial is over, however large they are.
        """
        name = entry(prefix)
        if name in self._made or not self._may_note(prefix, model):
            return
        self._made.add(name)
        folder, begin = os.path.split(name)
        had = []
        with contextlib.suppress(OSError):
            had = [name for name in _listdir(folder) if name.startswith(begin)]
        self._note(
            made=os.path.join(folder, begin), had=had, folder=False, model=model, scratch=scratch,
            after_first_step=self._has_stepped(),
        )  # fmt: skip

    def will_rename(self, source: str, destination: str) -> None:
        """What the trial made gets another name, and whatever lies in it."""
        source = entry(source)
        self.will_make(destination, folder=os.path.isdir(source), model=source in self._models)
        for below in [path for path in self._made if path.startswith(source + os.sep)]:
            to = destination + below.removeprefix(source)
            self.will_make(to, folder=os.path.isdir(below), model=below in self._models)

    @property
    def has_any(self) -> bool:
        """Whether this process has noted anything."""
        return bool(self._made)

    def has_made(self, name: str) -> bool:
        """Whether this process has noted the path, the links in whose folder are resolved, as the trial's."""
        return name in self._made

    def read(self, name: str) -> None:
        """What the script reads again is data, and not what came out of it. ``name`` as in ``has_made``."""
        if name in self._made and name not in self._read:
            self._read.add(name)
            self._note(read=name)

    def _may_note(self, path: str, model: bool) -> bool:
        return len(self._made) < _MOST and self._is_watched(path, model)

    def _note(self, **fields: object) -> None:
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(self._descriptor, json.dumps(fields).encode() + b"\n")
        except OSError:
            pass  # a full disk: what is made then can't be much


def _is_a_sample_read() -> bool:
    """Whether a sample of a dataset is being made by one of the calls that led here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in _OF_A_SAMPLE:
        frame = frame.f_back
    return frame is not None


def _is_there(path: str) -> bool:
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True
