"""How long the device had nothing to do while a loop of JAX's waited for its data.

JAX gives the script its results before they are there, so that the next batch is made while the device computes. Only
what of the wait is left when the newest step is done is time that other loaders could spare.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from ..sources import Reader
from .deferred import under_way

Wait = Callable[[Any], object]
"""Waits for arrays."""


class _Stamp:
    """When the newest step was done; None as long as it isn't."""

    done_s: float | None = None


class Lead(Reader):
    """``newest``: arrays of the newest results. Of the thread that trains; another one waits for the device beside.

    ``donated``: newest results that it mustn't hold. They tell only whether the device is busy yet when a batch comes.
    """

    is_there = True

    def __init__(
        self, newest: Callable[[], Iterable[Any]], wait: Wait, donated: Callable[[], Iterable[Any]] = tuple
    ) -> None:  # fmt: skip
        self._newest, self._donated = newest, donated
        self._wait = wait
        self._stamp: _Stamp | None = None
        self._asked: queue.SimpleQueue[tuple[list[Any], _Stamp]] | None = None

    def fetch_begins(self) -> None:
        """Notes what the device is still to do. Calls that wait for further ones go on waiting: those before them are
        what it may be busy with.
        """
        behind = _not_ready(self._newest())
        self._stamp = _Stamp() if behind else None
        if self._stamp is None:
            return
        if self._asked is None:
            self._asked = queue.SimpleQueue()
            threading.Thread(target=_watch, args=(self._asked, self._wait), daemon=True).start()
        self._asked.put((behind, self._stamp))

    def idle_s(self, wait_s: float) -> float:
        """Of the wait that ends now."""
        stamp, self._stamp = self._stamp, None
        if stamp is None:
            return 0.0 if _not_ready(self._donated()) else wait_s
        return 0.0 if stamp.done_s is None else min(wait_s, max(0.0, time.perf_counter() - stamp.done_s))


def _not_ready(results: Iterable[Any]) -> list[Any]:
    return [array for array in under_way(results) if hasattr(array, "is_ready") and not array.is_ready()]


def _watch(asked: queue.SimpleQueue[tuple[list[Any], _Stamp]], wait: Wait) -> None:
    while True:
        arrays, stamp = asked.get()
        with suppress(Exception):  # they were given away meanwhile, or their computation has failed: the script is told
            wait(arrays)
        stamp.done_s = time.perf_counter()
        del arrays
