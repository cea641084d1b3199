"""The modules of the user's own that the script has imported, by what their sources hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator

from .call_sites import is_library
from .wire import CACHES, FILES, MADE

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # tuner, which a script may import
class UserModules:
    """Looked at when the training begins and when it has ended. ``trial`` is its folder."""

    def __init__(self, trial: str) -> None:
        self._trial = trial
        self._at_first: dict[str, str] = {}

    def begin(self) -> None:
        """To be called at the first step: what trains has been imported by then."""
        self._at_first = _hashes(self._trial)

    def hashes(self) -> dict[str, str]:
        """Path of a module's source, from the script's folder → SHA-256 of it; "" where it was edited meanwhile."""
        now = _hashes(self._trial)
        return {name: own if self._at_first.get(name, own) == own else "" for name, own in now.items()}


def _hashes(trial: str) -> dict[str, str]:
    """Those of now. The script itself isn't among them.

    What a compiler or a download left is no source of the user's, and is another one next time; nor is what the script
    wrote itself, of which the folder of the ``trial`` tells.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not main:
        return {}
    script = os.path.realpath(main)
    made = tuple(folder for folder in _made_by_programs() if not script.startswith(folder))
    found: dict[str, str] = {}
    written = set(_made_by(trial))
    for module in list(sys.modules.values()):
        name = getattr(module, "__dict__", {}).get("__file__")  # asking a lazy module itself may import it
        if not isinstance(name, str) or not name.endswith(".py") or is_library(name):
            continue
        path = os.path.realpath(name)
        if path == script or path.startswith((_OURS, *made)) or is_library(path):
            continue
        if path in written or os.path.lexists(os.path.join(trial, FILES, path.lstrip(os.sep))):
            continue
        try:
            with open(path, "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            continue  # of an archive, or gone since
        found[os.path.relpath(path, os.path.dirname(script))] = digest
    return dict(sorted(found.items()))


def _made_by(trial: str) -> Iterator[str]:
    """What the trial has made among the user's files."""
    with contextlib.suppress(OSError), open(os.path.join(trial, MADE), encoding="utf-8") as notes:
        for line in notes:
            with contextlib.suppress(ValueError, AttributeError):
                yield str(json.loads(line).get("made"))


def _made_by_programs() -> tuple[str, ...]:
    """Folders in which programs keep what they make."""
    named = [folder for name in CACHES if (folder := os.environ.get(name))]
    inductor = [os.path.join(tempfile.gettempdir(), entry) for entry in _entries(tempfile.gettempdir())]
    places = [*named, *inductor, tempfile.gettempdir(), os.path.join(os.path.expanduser("~"), ".cache")]
    return tuple(os.path.realpath(place) + os.sep for place in places)


def _entries(folder: str) -> list[str]:
    """Inductor's own folders in the temporary one, which the script may lie in as well."""
    try:
        return [entry for entry in os.listdir(folder) if entry.startswith("torchinductor_")]
    except OSError:
        return []
