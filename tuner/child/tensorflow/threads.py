"""Training in a thread beside the script's own, whose steps aren't seen: says so, before a trial's time is over."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType

from ..session import Session, StopTrial
from . import FRAMEWORK

UNSEEN = "the script trains in a thread beside its own one, whose steps aren't seen"
MOST_UNSEEN = 32
"""Gradients of variables there, while no step is seen, after which no trial waits for one."""
_TELLS = "tuner"
"""What a script imports to tell of its own steps: it may do so later, as the reason above advises."""


class ThreadWatch:
    """Counts the gradients of variables that are taken beside the script's own thread, and by no strategy's.

    ``then``: told of each gradient.
    """

    def __init__(self, session: Session, tf: ModuleType, then: Callable[[], None] = lambda: None) -> None:
        self.session = session
        self.tf = tf
        self._then = then
        self._taken = 0

    def gradient_taken(self) -> None:
        """One was taken, or traced. Ends the trial where that is all the training there is."""
        self._then()
        session = self.session
        if not session.measuring or session.clock.total_steps or threading.get_ident() == session.thread:
            return
        if not session.may_be_of(FRAMEWORK) or self.tf.distribute.has_strategy() or _TELLS in sys.modules:
            return
        self._taken += 1
        if self._taken == MOST_UNSEEN:
            session.fail("no-step", UNSEEN)
            try:
                session.stop("no step can be seen", complete=False)
            except StopTrial:
                pass  # it unwinds the script's own thread, and this one ends with the process
