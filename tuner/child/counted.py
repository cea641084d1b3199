"""What a block counts while it is open, and what a step is going to count."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


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


class Fetched:
    """Batches that were fetched since the last step, by whatever thread.

    ``validated_on``: whether they are forgotten with the next one, but for those that a gradient is taken on;
    ``evaluated_on``: whether they are with the next iteration.
    """

    def __init__(self) -> None:
        self.validated_on = self.evaluated_on = False
        self._lock = threading.Lock()
        self._all, self._trained_on = Counted(), Counted()

    @property
    def samples(self) -> float:
        """Of all of them."""
        return self._all.samples

    def add(self, batch: Counted) -> None:
        """Another batch came."""
        with self._lock:
            if self.validated_on:
                # No step followed: the script validates on its training data, too.
                self._all, self.validated_on = replace(self._trained_on), False
            self._all.add(batch)

    def settle(self, counted: Counted) -> None:
        """What belongs to the step under way was counted elsewhere."""
        with self._lock:
            self._all.add(counted)

    def trains(self) -> None:
        """A gradient is about to be taken on what has come so far."""
        with self._lock:
            self._trained_on = replace(self._all)

    def drop_evaluated(self) -> None:
        """What was evaluated on since a gradient was taken isn't trained on; it was waited for all the same."""
        with self._lock:
            if not self.evaluated_on:
                return
            self.evaluated_on = False
            self._all.samples, self._all.tokens = self._trained_on.samples, self._trained_on.tokens

    def take(self) -> Counted:
        """A step has ended, on all of them."""
        with self._lock:
            taken, self._all, self._trained_on = self._all, Counted(), Counted()
            self.validated_on = self.evaluated_on = False
        return taken
