"""When a trial beside the script as written has said enough: a search trial is as long as its question needs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.analysis.stats import Interval
from tuner.analysis.turns import Scatter, Turn, gain_interval, log_ratio

LOOKS = (4, 6, 8, 11, 15, 20)
"""Pairs of turns after which a trial is looked at: each look more is a chance more to be wrong."""
LEAST_S = 0.6
"""Seconds of a trial's own turns before the first look: a few short ones may all lie in a slow epoch's start."""
_ERROR = 0.02
"""The chance, over all looks together, that a trial is taken for a loser whose rate is that of the best one."""
LOOKS_BEYOND = (1.5, 2.0, 3.0, 4.0)
"""Windows after which a trial that goes on is asked again whether it is open: it ends at one of few moments, which are
fixed before, and not as soon as its interval happens to be narrow.
"""
ROUGH = 0.08
"""With a wider one it is measured for longer, where it may be the best."""
VAGUE = 2 * ROUGH
"""With one that is wider still it says little of what it was run for."""
PRECISE = 0.04
"""A relative 95% half-width of the gain with which a trial has said enough."""


@dataclass(frozen=True)
class Race:
    """What a trial runs against: ``best`` is the highest gain of the search so far, None where there is none.

    ``scatter``: how pairs of turns scatter in the study's trials by now. Four or six pairs alone bound their own so
    badly that hardly a loser of 0.7x can be told from the best.
    """

    best: float | None = None
    scatter: Scatter | None = None

    def is_settled(self, pairs: Sequence[tuple[Turn, Turn]], *, whole: bool) -> bool:
        """Whether more turns would change little. Never before the trial's window holds what it has to (``whole``).

        At each of ``LOOKS`` a trial is over that is sure to stay below the best one (all looks together err with 2% at
        most, by Bonferroni), whose gain is precise enough, or that is as sure to be the best one, and how fast is known
        roughly: what comes after it says the rest. The last pair of a loser is below the best as well: what trains
        slowly at first comes up.
        """
        if not whole or len(pairs) not in LOOKS or sum(own.seconds for own, _ in pairs) < LEAST_S:
            return False
        found = self._gain(pairs)
        if found is None:
            return False
        half = (found.high - found.low) / 2
        sure = self._gain(pairs, 1 - 2 * _ERROR / len(LOOKS))
        if self.best is not None and sure is not None:
            best = math.log(self.best)
            if sure.high < best and log_ratio(pairs[-1]) < best:
                return True
            if sure.low > best and half < ROUGH:
                return True
        return half < PRECISE

    def is_open(self, pairs: Sequence[tuple[Turn, Turn]]) -> bool:
        """Whether the trial may be the best one by an interval that is still wide: a longer window is worth it.

        It is asked once its window is over, and then after ``LOOKS_BEYOND``.
        """
        found = self._gain(pairs)
        return found is None or self._may_be_best(found, ROUGH)

    def says_little(self, pairs: Sequence[tuple[Turn, Turn]]) -> bool:
        """Whether the trial may be the best one by an interval that is wide even for a longer window.

        What is proven first goes by such trials, and its screen and finals take ten times as long as another window or
        two. False where turns were too disturbed to tell.
        """
        found = self._gain(pairs)
        return found is not None and self._may_be_best(found, VAGUE)

    def _gain(self, pairs: Sequence[tuple[Turn, Turn]], confidence: float = 0.95) -> Interval | None:
        return gain_interval(pairs, confidence, self.scatter)

    def _may_be_best(self, found: Interval, half: float) -> bool:
        return found.high >= math.log(self.best or 1.0) and (found.high - found.low) / 2 > half


def asked_again_after(windows: float) -> float:
    """After how many windows a trial is asked again that was asked after so many; infinite where it isn't."""
    return next((look for look in LOOKS_BEYOND if look > windows), math.inf)
