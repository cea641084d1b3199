"""How long those that make a loop's batches beside it take to one: by what a loop gets that waits for them."""

from __future__ import annotations

from .records import Block, Phase

WAITS = 0.05
"""A loop is held up by those that make its batches where it waits for more than that share of its time."""


class Making:
    """What was made for a loop in its warm-up, which nothing interrupts."""

    def __init__(self) -> None:
        self._seconds = self._waited_s = self._samples = 0.0

    def add(self, block: Block) -> None:
        """Takes a block in, of whatever phase. What an epoch begins with is no wait for what is being made."""
        if block.phase is Phase.WARMUP and not block.flagged:
            self._seconds += block.seconds
            self._waited_s += block.wait_s - block.start_s
            self._samples += block.samples

    def batch_s(self, at_work: float) -> float:
        """Seconds from the beginning of a batch to its end, where so many samples are being made at once; 0 where the
        loop isn't held up by that, or nothing is known.

        All that are at work are busy while the loop waits, so that it gets ``at_work`` samples in that time.
        """
        if self._samples <= 0 or self._waited_s <= WAITS * self._seconds:
            return 0.0
        return at_work * self._seconds / self._samples
