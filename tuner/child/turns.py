"""Takes turns: trials that are compared are alive together, and each trains while the others hold still.

Between two steps the child tells that its turn is over, and reads a line from an inherited descriptor: the number of
its next turn, or ``END``. Meanwhile the parent stops all its processes: nothing of it takes a core or fills a queue.
"""

from __future__ import annotations

import os
import random
import time
from typing import Protocol

from .making import Making
from .recorder import Recorder
from .records import Block, TurnEnd, Window

END = 0
"""Instead of a turn's number: there are no more, and the window is complete."""


LEAD_IN_S = 0.1
"""At the start of a turn, so long nothing is measured where others make a loop's batches. A request to a disk or a
network that was under way came back meanwhile: what was made of it lies ready by then, and is counted as such."""
SHORT_LEAD_IN_S = 0.03
"""Where nothing is seen to lie ready: a thread of the script's own may have made something all the same."""
SHORT_STEP = 0.4
"""Of a turn: a lead-in, which takes a step at least, would take too much of a turn with longer ones."""

UNEVEN = 0.5
"""Turns are longer or shorter than usual at random, by up to so much of their length, and on average as long. Epochs
that last as long as a turn and its lead-in began in each turn else, or in each lead-in, by chance for the whole trial.
Of epochs of 0.3 to 0.8 s that begin with a fifth of their time, 60 turns gave a rate that was off by 8.7% (root mean
square), 4.4% with 0.3, 2.9% with 0.5, and 2.6% with 0.6.
"""

LONGEST_S = 1.0
"""Of a batch, as far as turns and lead-ins are longer for it: a trial would have too few of them else, and too late."""
DRAIN_S = 10.0
"""So long a warm-up lasts at most for what lay ready before: held between turns, it would hardly get less."""
GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, without their whole parts, lie evenly between 0 and 1, however many there are."""


class TurnGiver(Protocol):
    """Gives a window its turns. ``current``: the number of the turn; 0 before the first one. ``ended``: no other will
    come. ``stretch``: how many times as long as usual the turn is.
    """

    current: int
    ended: bool
    stretch: float = 1.0
    at_work: float = 0.0
    """Samples that are being made at once beside the loop by what rests meanwhile, as for requests that come back while
    a trial is held: a batch of each worker; 0 where there is none, or nobody can tell."""
    begins_as_taken: bool = False
    """Whether those begin another batch only once the loop has taken one: what came back is used up first."""

    def wait(self, *, enough: bool, whole: bool) -> float:
        """Ends the turn and waits for the next one; how long that was, in seconds. See ``TurnEnd``."""
        ...

    def measured(self, block: Block) -> None:
        """A block ended, of whatever phase."""
        return

    @property
    def wait_share(self) -> float:
        """In which share of its time the loop waited for its data, in the newest blocks of the warm-up."""
        return 0.0

    def drains(self, warmed_up_s: float) -> bool:
        """Whether the loop lives on what lay ready before, after a warm-up of so many seconds, but not for long."""
        return False

    def lead_in_s(self, *, stock: bool, short: bool) -> float:
        """For how long nothing is measured at the start of a turn, at least for a step; 0 where everything is.

        ``stock``: whether batches are seen to lie ready. ``short``: whether steps are much shorter than a turn.
        """
        return LEAD_IN_S if stock else SHORT_LEAD_IN_S if short else 0.0


def are_ahead(turns: TurnGiver | None) -> bool:
    """Whether turns will be taken, and none has begun: trials that take others of them may not have started yet."""
    return turns is not None and turns.current == END and not turns.ended


class Turns(TurnGiver):
    """The child's side of turns that its parent gives."""

    def __init__(self, recorder: Recorder, descriptor: int, block_s: float = Window.block_s) -> None:
        self._recorder = recorder
        self._descriptor = descriptor
        self._block_s = block_s
        self._pid = os.getpid()
        self.current = END
        self.ended = False
        self._making = Making()
        self._lengths, self._phase = random.Random(1), 0.0

    def wait(self, *, enough: bool, whole: bool) -> float:
        """As ``TurnGiver.wait``."""
        if self.ended or os.getpid() != self._pid:
            return 0.0
        began = time.perf_counter()
        self._recorder.emit(TurnEnd(enough, whole))
        line = b""
        while not line.endswith(b"\n") and (read := os.read(self._descriptor, 1)):
            line += read
        self.current = int(line) if line.endswith(b"\n") else END  # where nobody gives turns any more
        self.ended = self.current == END
        self.vary()
        return time.perf_counter() - began

    def vary(self) -> None:
        """Another turn begins: how long it is."""
        self.stretch = self.longer * self._lengths.uniform(1 - UNEVEN, 1 + UNEVEN)

    @property
    def made_s(self) -> float:
        """Seconds that a batch takes to be made where the loop waits for it, ``LONGEST_S`` at most; else 0."""
        return min(LONGEST_S, self._making.batch_s(self.at_work))

    @property
    def longer(self) -> float:
        """How many times as long as usual turns are on average: as long as a batch takes, at least."""
        return max(1.0, self.made_s / self._block_s)

    def measured(self, block: Block) -> None:
        """As ``TurnGiver.measured``."""
        self._making.add(block)

    @property
    def wait_share(self) -> float:
        """As ``TurnGiver.wait_share``."""
        return self._making.wait_share

    def drains(self, warmed_up_s: float) -> bool:
        """As ``TurnGiver.drains``."""
        return self.at_work > 0 and warmed_up_s + self._making.stock_lasts_s() <= DRAIN_S

    def lead_in_s(self, *, stock: bool, short: bool) -> float:
        """As ``TurnGiver.lead_in_s``; longer by up to what a batch takes, where the loop waits for those that make it.

        While a trial is held its workers' requests come back, so that all begin their next ones at once when it goes
        on. What they make in a turn then depends on when that begins to be measured: at any moment of theirs alike. It
        is longer by what the loop takes to use up what came back, where no others are begun before.
        """
        self._phase = (self._phase + GOLDEN) % 1
        used_up = 1 - self.wait_share if self.begins_as_taken else 0.0
        return super().lead_in_s(stock=stock, short=short) + (self._phase + used_up) * self.made_s
