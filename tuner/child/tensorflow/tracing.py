"""Traces in the middle of training: the parent is told that a function is being compiled, however long that takes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from ..patches import patch
from ..session import Session
from ..watch import Pause
from .types import Result


class TraceWatch:
    """Patches what TensorFlow traces a function by. Before the first step nothing is said: nothing is expected then.

    A trace within a call of a training function lasts until that call ends: XLA compiles there, and no Python sees it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._depth = 0
        self._calling = False
        self._told = False

    def install(self) -> None:
        """Called right after ``import tensorflow``; does nothing in an applied run."""
        if not self._session.measuring:
            return
        tracing = sys.modules["tensorflow.python.eager.polymorphic_function.tracing_compilation"]
        patch(tracing, "_create_concrete_function", self._create)

    def call_begins(self) -> None:
        """A function is about to be called that may be a training step."""
        self._calling = True

    def call_ended(self) -> None:
        """It has returned, or raised."""
        self._calling = False
        self._end()

    def _create(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def _create_concrete_function(*args: object, **kwargs: object) -> Result:
            session = self._session
            if not session.here or threading.get_ident() != session.thread or not session.clock.total_steps:
                return original(*args, **kwargs)
            self._depth += 1
            if not self._told:
                self._told = True
                session.pause(Pause.COMPILATION, begins=True)
            try:
                return original(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._calling:
                    self._end()

        return _create_concrete_function

    def _end(self) -> None:
        if self._told and not self._depth:
            self._told = False
            self._session.pause(Pause.COMPILATION, begins=False)
