"""Ends a study on a signal: at first gently with the best so far, then at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TextIO


@contextmanager
def stopping_on_signals(stop: threading.Event, on_stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C sets ``stop`` and a second one raises ``KeyboardInterrupt``; SIGTERM and SIGHUP only set it.

    A SIGHUP that is ignored, as under nohup, stays so: the study is meant to outlive its terminal.

    ``on_stop`` is called once from the signal handler: it must not take locks.
    """

    terminals = [stream for stream in (sys.stdin, sys.stdout, sys.stderr) if stream is not None and stream.isatty()]

    def interrupt(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        finish(number, frame)

    def finish(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave(terminals)
        if not stop.is_set():
            stop.set()
            on_stop()

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: finish, signal.SIGHUP: finish}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        del handlers[signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(terminals: Sequence[TextIO]) -> None:
    """The terminal is gone: what is written to it would raise and so end the study without its result.

    Once it is gone it no longer says that it is a terminal: that had to be asked before.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in terminals:
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):
            continue
    os.close(nowhere)
