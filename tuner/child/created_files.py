"""Writes down which files and folders the trial makes among the user's: the parent puts them aside once it is over.

A script that wants an empty folder, or one that isn't there yet, would otherwise run once and never again. What is
written down lies on disk before the file does, so that it is known even if trial and study are killed together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from .wire import MADE

_MOST = 10_000
"""So many are noted at most: a script that writes a file a sample must not be slowed down by it."""


class CreatedFiles:
    """Notes each path once, before anything is written there, in ``MADE`` in the trial's folder.

    ``is_watched``: whether a path lies among the user's files, and not where trials may write what they like.
    ``has_stepped``: whether a step was taken; what comes later may be a result, what comes earlier prepared data.
    """

    def __init__(self, folder: str, is_watched: Callable[[str], bool], has_stepped: Callable[[], bool]) -> None:
        self._path = os.path.join(folder, MADE)
        self._is_watched = is_watched
        self._has_stepped = has_stepped
        self._made: set[str] = set()
        self._descriptor: int | None = None

    def will_make(self, path: str | None, *, folder: bool = False) -> None:
        """A file (or a folder) is about to be written at the path; one that is there already is the user's."""
        if path is None or len(self._made) >= _MOST or os.path.lexists(path) or not self._is_watched(path):
            return
        self._made.add(path)
        self._note(made=os.path.realpath(path), folder=folder, after_first_step=self._has_stepped())

    def read(self, path: Any) -> None:
        """What the script reads again is data, and not what came out of it."""
        if self._made and isinstance(path, (str, os.PathLike)):
            name = os.path.abspath(os.fsdecode(path))
            if name in self._made:
                self._note(read=os.path.realpath(name))

    def _note(self, **fields: Any) -> None:
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(self._descriptor, json.dumps(fields).encode() + b"\n")
        except OSError:
            pass  # a full disk: what is made then can't be much
