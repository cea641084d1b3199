"""Sessions of TensorFlow 1, in which no step can be seen, since the run of a graph doesn't tell what of it trains.

Says so where the script has no other steps, and tells of none by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import ModuleType

from ..applied import AppliedRun
from ..participants import ExitListener
from ..patches import patch
from ..session import Session
from . import FRAMEWORK
from .functions import not_converted
from .types import Result

UNSEEN = "the script computes in sessions of tf.compat.v1, in which no step can be seen"


class SessionWatch(ExitListener):
    """Notes that graphs are run by ``tf.compat.v1.Session``, and that some of them take gradients."""

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self.session = session
        self.tf = tf
        self._trains = False
        self._first_run: float | None = None

    def install(self) -> None:
        """Patches what makes gradients in a graph, and what runs one."""
        if not self.session.measuring:
            return
        v1 = self.tf.compat.v1
        for owner in (self.tf, v1):
            patch(owner, "gradients", self._noting)
        patch(v1.train.Optimizer, "compute_gradients", self._noting)
        patch(next(cls for cls in v1.Session.__mro__ if "run" in cls.__dict__), "run", self._running)
        self.session.exit_listeners.append(self)

    def _noting(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def gradients(*args: object, **kwargs: object) -> Result:
            self._trains = True
            return original(*args, **kwargs)

        return not_converted(gradients)

    def _running(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def run(*args: object, **kwargs: object) -> Result:
            self.session.check_stop()
            result = original(*args, **kwargs)
            self._ran()
            return result

        return run

    def _ran(self) -> None:
        """A graph was run. Ends the trial where the script has trained for as long as is left, and told of no step."""
        session = self.session
        if session.clock.total_steps or not session.here:
            return
        now = time.monotonic()
        self._first_run = now if self._first_run is None else self._first_run
        is_late = self._trains and now - self._first_run > session.left_s
        if is_late and threading.get_ident() == session.thread and session.may_be_of(FRAMEWORK):
            session.fail("no-step", UNSEEN)
            session.stop("no step can be seen", complete=False)

    def script_ended(self) -> None:
        """Says why no step was seen."""
        session = self.session
        if self._first_run is not None and not session.clock.total_steps and session.may_be_of(FRAMEWORK):
            session.fail("no-step", UNSEEN)

    def leaving(self) -> None:
        """Nothing is left to do."""


def note_graphs(tf: ModuleType, applied: AppliedRun) -> None:
    """Has gradients noted that are taken without a tape: in which session or function they run isn't seen."""

    def taking(by: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
        def make(original: Callable[..., Result]) -> Callable[..., Result]:
            def gradients(*args: object, **kwargs: object) -> Result:
                applied.took_gradients(by)
                return original(*args, **kwargs)

            return not_converted(gradients)

        return make

    v1 = tf.compat.v1
    patch(tf, "gradients", taking("tf.gradients"))
    patch(v1, "gradients", taking("tf.gradients"))
    patch(v1.train.Optimizer, "compute_gradients", taking("an optimizer of TensorFlow 1"))
