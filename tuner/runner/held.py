"""Ends a trial that is held as soon as its guard is killed, whatever the study is at meanwhile.

The guard would have ended what is stopped when the study died. Without one it stays stopped for good, should the study
be killed before the trial's next turn.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable


class HeldTrial:
    """Waits in a thread of its own, once the trial is held for the first time. ``end`` ends the trial, and is called
    while it is held only: who made this has it for itself at other times.
    """

    def __init__(self, guard: int, end: Callable[[], None]) -> None:
        self._guard = guard
        self._end = end
        self._ours = threading.Lock()
        self._ours.acquire()
        self._is_held = False
        self._closed, self._close = os.pipe()
        self._thread: threading.Thread | None = None

    def hold(self) -> None:
        """It is held from here on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, name="held trial", daemon=True)
            self._thread.start()
        self._is_held = True
        self._ours.release()

    def release(self) -> None:
        """It isn't held any more, if it was; waits until it is ended where that has begun."""
        if self._is_held:
            self._ours.acquire()
            self._is_held = False

    def close(self) -> None:
        """Ends the thread."""
        self.release()
        os.close(self._close)
        if self._thread is not None:
            self._thread.join()
        os.close(self._closed)

    def _wait(self) -> None:
        closed = select.poll()
        closed.register(self._closed, select.POLLIN)
        try:
            guard = os.pidfd_open(self._guard)
        except OSError:
            pass  # it has ended
        else:
            ended = select.poll()
            ended.register(self._closed, select.POLLIN)
            ended.register(guard, select.POLLIN)
            ended.poll()
            os.close(guard)
        while not closed.poll(0):
            if self._ours.acquire(timeout=0.1):
                try:
                    self._end()
                finally:
                    self._ours.release()
                return
