"""Ends a study on a signal: at first gently with the best so far, then at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_GENTLE = ("SIGTERM", "SIGHUP")


@contextmanager
def stopping_on_signals(stop: threading.Event, on_stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C sets ``stop`` and a second one raises ``KeyboardInterrupt``; SIGTERM and SIGHUP only set it.

    ``on_stop`` is called once from the signal handler: it must not take locks.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        finish(number, frame)

    def finish(number: int, frame: FrameType | None) -> None:
        if number == getattr(signal, "SIGHUP", None):
            _leave_terminal()
        if not stop.is_set():
            stop.set()
            on_stop()

    handlers = {signal.SIGINT: interrupt}
    handlers |= {getattr(signal, name): finish for name in _GENTLE if hasattr(signal, name)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_terminal() -> None:
    """The terminal is gone: what is written to it would raise and so end the study without its result."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        try:
            if stream.isatty():
                os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):
            continue
    os.close(nowhere)
