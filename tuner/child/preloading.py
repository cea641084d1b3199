"""Keeps a library that this process was begun with to the training: what the script starts has the user's environment.

A preloaded library comes into each program that begins with the same environment: a script's ``ffmpeg``, its ``git``,
another Python. Workers that multiprocessing starts anew ("spawn", "forkserver": a DataLoader's, ranks of
``torch.multiprocessing``) are a part of the training that was proven with it, and have it as forked ones do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from . import wire
from .patches import patch

PRELOAD = "LD_PRELOAD"
_WORKERS = ("from multiprocessing.spawn import", "from multiprocessing.forkserver import")
"""What the code of their command begins with; multiprocessing's tracker of resources is none of them."""
_ENVIRONMENT = 4
"""Its place among the arguments that follow the command."""


def keep_to_training() -> None:
    """Takes the library that the parent added out of the environment, before the script's first line."""
    library = os.environ.pop(wire.PRELOADED_ENV, None)
    before, _, last = os.environ.get(PRELOAD, "").rpartition(":")
    if library is None or last != library:
        return
    if before:
        os.environ[PRELOAD] = before
    else:
        del os.environ[PRELOAD]
    import _posixsubprocess

    # What multiprocessing calls by this name, and ``subprocess`` by one of its own.
    patch(_posixsubprocess, "fork_exec", lambda original: _giving_to_workers(original, library))


def _giving_to_workers(original: Callable[..., int], library: str) -> Callable[..., int]:
    def fork_exec(args: Sequence[str | bytes], *others: Any) -> int:
        words = [os.fsdecode(word) for word in args]
        code = next((place for place, word in enumerate(words) if word.startswith(_WORKERS)), None)
        if code is not None and others[_ENVIRONMENT] is None:
            own = os.environ.get(PRELOAD)
            words[code] = _taking_back(own) + words[code]
            given = {**os.environ, PRELOAD: ":".join(filter(None, (own, library)))}
            environment = [os.fsencode(f"{name}={value}") for name, value in given.items()]
            return original(words, *others[:_ENVIRONMENT], environment, *others[_ENVIRONMENT + 1 :])
        return original(args, *others)

    return fork_exec


def _taking_back(own: str | None) -> str:
    """What a worker does first, as code: programs that it starts in turn have the user's environment."""
    back = f"os.environ.pop({PRELOAD!r})" if own is None else f"os.environ[{PRELOAD!r}] = {own!r}"
    return f"import os; {back}; "
