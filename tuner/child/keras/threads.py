"""Whether the batches of a PyDataset may be made by several threads at once: not where they share what changes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress

from ..data_state import ITERATIONS_READ, StateWatch, values
from ..session import Session


class SharedData:
    """Looks at the PyDataset of the script's newest ``fit``, whose batches are made one after the other."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._roots: Mapping[str, object] = {}
        self._watch = StateWatch()
        self._epochs = 0

    def fit_begins(self, data: object, workers: int) -> None:
        """A call of ``fit``; what the script itself gives to several workers is known to bear it."""
        self._roots = {"dataset": data} if workers <= 1 else {}
        with suppress(Exception):  # the user's own classes may raise anything
            file = next((path for path, value, _ in values(self._roots) if isinstance(value, io.IOBase)), "")
            if file:
                self._leave_out(f"{file} is an open file, which threads would read at each other's places")

    def epoch_begins(self) -> None:
        """What the data change of themselves between two epochs, no thread is in the way of."""
        self._watch = StateWatch()
        self._epochs += 1

    def batch_ended(self) -> None:
        """The model was trained on one more batch."""
        moved = self._watch.read(self._roots) if self._roots and self._epochs <= ITERATIONS_READ else ""
        if moved:
            self._leave_out(f"{moved} changes while the batches are made: threads would change it under each other")

    def _leave_out(self, reason: str) -> None:
        self.session.facts.left_out["workers"] = reason
