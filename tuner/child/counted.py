"""What a block counts while it is open."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counted:
    """Of steps: samples, their tokens, seconds waited for data, iterations begun, seconds of those."""

    samples: float = 0.0
    tokens: float = 0.0
    wait_s: float = 0.0
    starts: int = 0
    start_s: float = 0.0

    def add(self, other: Counted) -> None:
        """Counts what the other one did."""
        self.samples += other.samples
        self.tokens += other.tokens
        self.wait_s += other.wait_s
        self.starts += other.starts
        self.start_s += other.start_s
