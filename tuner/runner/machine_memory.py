"""The memory that the machine has left for trials, and who took it when there is none: the trial or others."""

from __future__ import annotations

from tuner.devices.host import host_memory, shared_memory

FLOOR = 0.03
"""A trial ends where less than this share of the machine's memory is left."""
SCARCE = 0.10
"""Where more than this share was left all the time, the machine wasn't full."""
GROWTH = 0.10
"""Others filled it where they hold so much more of it, as a share, than when they held least."""


class MachineMemory:
    """What is left for the trials of one runner, one after the other: of the machine, or of the container.

    What others hold is read while nothing of the trial runs, so that what the trial took is not among it, whatever
    counts its pages (memory pinned for a card, files in shared memory) or fails to.
    """

    def __init__(self) -> None:
        self._most = 0

    def begin(self) -> None:
        """To be called before a trial starts."""
        self._total, self._before = host_memory()
        self._shared = shared_memory()
        self._most = max(self._most, self._before)
        self._least = self._before

    def left(self) -> float:
        """The share of the machine's memory that is left now."""
        total, available = host_memory()
        self._least = min(self._least, available)
        return available / total if total else 1.0

    def taken_by_others(self, *, baseline: bool) -> str:
        """A line about the other processes that filled the machine; "" where it wasn't full or the trial filled it.

        To be called when the trial's processes are gone. Others are to blame where they hold much more than when they
        held least. The ``baseline`` is measured beside whatever is there, so that it is not to blame, either, for a
        machine that was full before it began; that any other config doesn't fit beside it is the config's fault.
        """
        _, available = host_memory()
        kept = max(0, shared_memory() - self._shared)  # files that the trial has left behind, perhaps
        grown = self._most - available - kept
        full_before = baseline and self._before < SCARCE * self._total
        if self._least >= SCARCE * self._total or (grown < GROWTH * self._total and not full_before):
            return ""
        held, total = (self._total - available - kept) / 2**30, self._total / 2**30
        return f"the machine's memory ran out: other processes hold {held:,.1f} of its {total:,.1f} GiB"

    def shares(self) -> str:
        """Who holds what, in a line, for a trial that filled the machine. To be called as ``taken_by_others``."""
        _, available = host_memory()
        held, total = (self._total - available) / 2**30, self._total / 2**30
        return f"other processes hold {held:,.1f} of the machine's {total:,.1f} GiB"
