"""Ends a call that takes too long, such as a compilation, in the script's own thread: by the process's alarm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from .types import Result

AGAIN_S = 1.0
"""What is ended may swallow the exception: it comes again."""
SOONEST_S = 1e-3
"""An alarm of 0 s would never ring."""


class TooLongError(Exception):
    """It took longer than it may."""


def is_free() -> bool:
    """Whether the alarm can be had here: nothing else uses it, and this is the thread that hears it."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and not signal.getitimer(signal.ITIMER_REAL)[0]


def within(seconds: float, told: str, run: Callable[[], Result]) -> Result:
    """What ``run()`` gives. Raises ``TooLongError``, which says ``told``, in it once it takes longer.

    It is raised in nothing but ``run`` and what that calls: the alarm may ring again, or as that has just ended, and
    would end whoever puts back what was changed. The alarm has to be free.
    """

    def limited() -> Result:
        return run()

    def ring(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not limited.__code__:
            frame = frame.f_back
        if frame is not None:
            raise TooLongError(told)

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(SOONEST_S, seconds), AGAIN_S)
    try:
        return limited()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
