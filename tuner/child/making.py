"""What a warm-up shows of those that make a loop's batches beside it: how long they take to one, what they had made."""

from __future__ import annotations

import math
from collections import deque

from .records import Block, Phase

WAITS = 0.05
"""A loop is held up by those that make its batches where it waits for more than that share of its time."""
SHRINKS = 0.1
"""What lies ready is used up where it gets less by more than that share of what the loop takes."""
NEWEST = 8
"""Blocks: those before them may have lived on what had been made before the first step."""


class Making:
    """What was made for a loop in its warm-up, which nothing interrupts, and taken by it."""

    def __init__(self) -> None:
        self._blocks: deque[Block] = deque(maxlen=NEWEST)

    def add(self, block: Block) -> None:
        """Takes a block in, of whatever phase."""
        if block.phase is Phase.WARMUP and not block.flagged:
            self._blocks.append(block)

    @property
    def wait_share(self) -> float:
        """Of its time that the loop waits for its data; what an epoch begins with is no such wait."""
        seconds = sum(block.seconds for block in self._blocks)
        return sum(block.wait_s - block.start_s for block in self._blocks) / seconds if seconds > 0 else 0.0

    def batch_s(self, at_work: float) -> float:
        """Seconds from the beginning of a batch to its end, where so many samples are being made at once; 0 where the
        loop isn't held up by that, or nothing is known. What an epoch begins with is no wait for what is being made.

        All that are at work are busy while the loop waits, so that it gets ``at_work`` samples in that time.
        """
        seconds, samples = sum(block.seconds for block in self._blocks), sum(block.samples for block in self._blocks)
        return at_work * seconds / samples if samples > 0 and self.wait_share > WAITS else 0.0

    def stock_lasts_s(self) -> float:
        """Seconds until what lies ready is used up, if it goes on as in the newest blocks; infinite where it doesn't.

        It comes and goes by a batch of each that is at work: the most of it in one half is held against the other.
        """
        half = len(self._blocks) // 2
        known = [(block, block.ready_after) for block in self._blocks if block.ready_after is not None]
        if half < 2 or len(known) < len(self._blocks):
            return math.inf
        before, after = max(ready for _, ready in known[:half]), max(ready for _, ready in known[half:])
        fell, taken = before - after, sum(block.samples for block, _ in known[half:])
        if fell <= SHRINKS * taken:
            return math.inf
        return after * sum(block.seconds for block, _ in known[half:]) / fell
