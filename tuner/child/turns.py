"""Takes turns: trials that are compared are alive together, and each trains while the others hold still.

Between two steps the child tells that its turn is over, and reads a line from an inherited descriptor: the number of
its next turn, or ``END``. Meanwhile the parent stops all its processes: nothing of it takes a core or fills a queue.
"""

from __future__ import annotations

import os
import time

from .recorder import Recorder
from .records import TurnEnd

END = 0
"""Instead of a turn's number: there are no more, and the window is complete."""


class Turns:
    """The child's side. ``current``: the number of the turn; 0 before the first one. ``ended``: no other will come."""

    def __init__(self, recorder: Recorder, descriptor: int) -> None:
        self._recorder = recorder
        self._descriptor = descriptor
        self._pid = os.getpid()
        self.current = END
        self.ended = False

    def wait(self, *, enough: bool, whole: bool) -> float:
        """Ends the turn and waits for the next one; how long that was, in seconds. See ``TurnEnd``."""
        if self.ended or os.getpid() != self._pid:
            return 0.0
        began = time.perf_counter()
        self._recorder.emit(TurnEnd(enough, whole))
        line = b""
        while not line.endswith(b"\n") and (read := os.read(self._descriptor, 1)):
            line += read
        self.current = int(line) if line.endswith(b"\n") else END  # where nobody gives turns any more
        self.ended = self.current == END
        return time.perf_counter() - began
