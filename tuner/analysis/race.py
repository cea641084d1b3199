"""When a trial beside the script as written has said enough: a search trial is as long as its question needs. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.analysis.turns import Turn, gain_interval, log_gains

LOOKS = (4, 6, 8, 11, 15, 20)
"""Pairs of turns after which a trial is looked at."""
_ERROR = 0.02
"""The chance, over all looks together, that a trial is taken for a loser whose rate is that of the best one."""
PRECISE = 0.03
"""A relative 95% half-width of the gain with which a trial that isn't near the best one has said enough."""
NEAR = 0.05
"""Within that share of the best gain, more is asked for: twice as precise."""


@dataclass(frozen=True)
class Race:
    """What a trial runs against: ``best`` is the highest gain of the search so far, None where there is none."""

    best: float | None = None

    def is_settled(self, own: Sequence[Turn], other: Sequence[Turn], *, whole: bool) -> bool:
        """Whether more turns would change little. ``whole``: the trial's window holds what it has to.

        At each of ``LOOKS`` a trial is over that is sure to stay below the best one (all looks together err with 2% at
        most, by Bonferroni), or whose gain is precise enough.
        """
        if len(log_gains(own, other)) not in LOOKS:
            return False
        if self.best is not None:
            sure = gain_interval(own, other, 1 - 2 * _ERROR / len(LOOKS))
            if sure is not None and sure.high < math.log(self.best):
                return True
        found = gain_interval(own, other)
        if found is None or not whole:
            return False
        near = self.best is None or abs(found.estimate - math.log(self.best)) < NEAR
        return (found.high - found.low) / 2 < (PRECISE / 2 if near else PRECISE)
