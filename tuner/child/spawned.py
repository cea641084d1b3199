"""What a process does first that multiprocessing starts anew in a trial: it leads files as the one that starts it."""

from __future__ import annotations

import json

from . import hooks, python_files, wire
from .carried import take
from .files import Overlay
from .recorder import Recorder
from .session import Session

_begun: list[Overlay] = []


def begin(carried: str) -> None:
    """Puts the watch on files in place, and nothing else: nobody measures here. ``carried`` is of ``carried.py``."""
    if _begun:
        return
    session = Session(wire.decode_request(json.loads(carried)["request"]), Recorder(None))
    session.measuring = False
    overlay = Overlay(session)
    take(overlay, carried)
    hooks.divert(session, overlay)
    python_files.install(overlay)
    _begun.append(overlay)
