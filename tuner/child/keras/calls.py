"""Calls of the training function: who is told of them, and what autotune's own instruments take of each."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from ..applied import AppliedRun
from ..words import INSTRUMENTS
from .types import TrainFunction

STEPPING = "_autotune_stepping"
"""Marks a training function whose calls are seen."""
LED_IN, LOOKED_AT = 50, 250
"""Of so many calls, after the first ones, is told what the instruments take."""
LONGEST = 20
"""Times the median: what took longer held something else, such as others' turns."""
SHORT_S = 0.005
"""In calls that take longer the instruments' share is next to nothing, and most end a block, which waits."""
WORTH_TELLING = 0.03


def told_to(applied: AppliedRun, function: TrainFunction, per_call: int) -> TrainFunction:
    """The training function, whose calls an applied run is told of."""

    def train_function(*args: object) -> object:
        result = function(*args)
        for _ in range(per_call):
            applied.stepped()
        return result

    setattr(train_function, STEPPING, True)
    return train_function


class CallCost:
    """``say`` is given a line, once, where the instruments take a share of a call that shows in what others gain.

    A config with fewer calls for as many samples is spared a part of it, which the script pays under autotune alone.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._calls = 0
        self._within_s = 0.0
        self._before: tuple[float, float] | None = None
        self._own_s: list[float] = []
        self._lasted_s: list[float] = []

    def within(self, seconds: float) -> None:
        """So much of a call, beside what lies before and behind the script's own part of it."""
        self._within_s += seconds

    def interrupted(self) -> None:
        """Something else, such as a validation, came behind the last call."""
        self._before = None

    def called(self, begun: float, own_begun: float, own_ended: float, ended: float) -> None:
        """A call has ended, whose own part lay between the inner two. All four by one clock, in seconds."""
        self._calls += 1
        own_s, self._within_s = own_begun - begun + ended - own_ended + self._within_s, 0.0
        if self._calls > LED_IN and self._before is not None and len(self._own_s) < LOOKED_AT:
            self._own_s.append(self._before[1])
            self._lasted_s.append(begun - self._before[0])
            if len(self._own_s) == LOOKED_AT:
                self._tell()
        self._before = begun, own_s

    def _tell(self) -> None:
        # Of results that come later calls are short, but for the one that waits for them.
        most_s = LONGEST * statistics.median(self._lasted_s)
        lasted_s = statistics.fmean(each for each in self._lasted_s if each <= most_s)
        share = statistics.median(self._own_s) / lasted_s if 0 < lasted_s <= SHORT_S else 0.0
        if share >= WORTH_TELLING:
            self._say(
                f"{INSTRUMENTS} take about {share:.0%} of a step here: what needs fewer calls for as many "
                "samples (steps_per_execution, a larger batch) reads faster by up to as much than it is"
            )
