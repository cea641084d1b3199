"""Which libraries have hooks, and what these replace: asked of a fork, since nothing of a session may stay here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from . import execute, patches
from .adapters import ADAPTERS
from .recorder import Recorder
from .records import ChildRequest
from .session import Session


def libraries() -> list[str]:
    """The names of modules that adapters wait for."""
    session = partial(Session, ChildRequest(), Recorder(None))
    found: list[str] = _answer(lambda: [name for make in ADAPTERS for name in make(session()).libraries])
    return found


def originals(requests: Iterable[ChildRequest]) -> list[object]:
    """What hooks replace of the modules that are imported here, in processes with such requests; each once."""

    def replaced(request: ChildRequest) -> list[tuple[str, str]]:
        execute.install_hooks(Session(request, Recorder(None)))
        return patches.of_modules()

    found = {}
    for request in requests:
        for module, name in _answer(partial(replaced, request)):
            names = vars(sys.modules[module]) if module in sys.modules else {}
            if name in names:
                found[id(names[name])] = names[name]
    return [*found.values()]


def _answer(ask: Callable[[], object]) -> Any:
    """What a fork of this process gives, as JSON. It prints nothing; raises ``ValueError`` where it fails."""
    (reader, writer), leave = os.pipe(), os._exit
    child = os.fork()
    if not child:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            with open(writer, "wb") as answer:
                answer.write(json.dumps(ask()).encode())
        finally:
            leave(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return json.loads(told)
