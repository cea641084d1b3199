"""Values that the script reads on the host before JAX has computed them: each read waits for the device."""

from __future__ import annotations

import sys
import threading
from typing import Any

from ..patches import patch
from ..session import Session
from .types import Call

FEW = 0.5
"""Steps with such a read are worth a remark from that share of all on."""
READING = (
    "__array__", "__bool__", "__complex__", "__float__", "__format__", "__index__", "__int__", "__repr__", "__str__",
    "item", "tobytes", "tolist",
)  # fmt: skip
"""Methods of arrays that give the script what they hold."""


class ReadWatch:
    """Counts, in ``waits``, the steps after which one had to wait, in the thread that trains: what an evaluation reads
    in its batches is all after the same step.

    What was computed by then costs nothing, as a loss does that is read a step later. On a processor NumPy looks into
    an array past these methods (``np.asarray``): that isn't seen. ``reads``: steps after which any value was read so,
    computed by then or not. ``is_ours``: whether it is autotune that reads now.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.waits = self.reads = 0
        self.is_ours = False
        self._last = self._read = 0

    def install(self) -> None:
        """Patches the class of arrays, right after JAX's import."""
        arrays: Any = sys.modules["jax._src.array"]
        for name in READING:
            if name in vars(arrays.ArrayImpl):
                patch(arrays.ArrayImpl, name, self._noting)

    def _noting(self, original: Call) -> Call:
        session = self.session

        def read(array: Any, *args: Any, **kwargs: Any) -> Any:
            trains = session.here and session.clock.total_steps and not (session.clock.validating or self.is_ours)
            steps = session.clock.total_steps
            if trains and steps != self._last and threading.get_ident() == session.thread:
                self.reads, self._read = self.reads + (steps != self._read), steps
                if _is_awaited(array):
                    self.waits, self._last = self.waits + 1, steps
            return original(array, *args, **kwargs)

        return read

    def remark(self) -> None:
        """Says it of a script that does so in most steps."""
        steps = self.session.clock.total_steps
        if self.waits >= FEW * steps > 0:
            self.session.facts.remark(
                f"after {self.waits} of {steps} steps values were read on the host before they were computed (float(),"
                " item(), print, if): each waits for the device, which has nothing to do until the script goes on"
            )


def _is_awaited(array: Any) -> bool:
    try:
        return not array.is_ready()
    except Exception:  # it was given away: to read it raises the script's own error
        return False
