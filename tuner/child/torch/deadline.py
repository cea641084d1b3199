"""Ends what the script's own thread does after some seconds, such as a compilation: by the process's alarm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN_S = 1.0
"""What is ended may swallow the exception: it comes again."""


class TooLongError(Exception):
    """It took longer than it may."""


def is_free() -> bool:
    """Whether the alarm can be had here: nothing else uses it, and this is the thread that hears it."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and not signal.getitimer(signal.ITIMER_REAL)[0]


@contextmanager
def ended_after(seconds: float, what: str) -> Iterator[None]:
    """Raises ``TooLongError`` within the block once it takes longer; ``what`` names it. The alarm has to be free."""
    armed = [True]

    def ring(number: int, frame: object) -> None:
        if armed[0]:
            raise TooLongError(f"{what} takes longer than {seconds:.0f} s")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        armed[0] = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
