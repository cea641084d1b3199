"""What trials that took turns say of each other: the ratio of their rates, by neighbouring turns. Pure.

What the machine does for seconds at a time meets both sides of a pair of turns alike (Bulej et al., Duet benchmarking,
ICPE 2020), so that the ratio of two rates is sharper than either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from tuner.analysis.stats import Interval, mean_interval
from tuner.model import Ratio


class Turn(NamedTuple):
    """One turn of a trial: its number among those of all who took turns, what was counted in it, and its seconds."""

    number: int
    amount: float
    seconds: float


def log_gains(own: Iterable[Turn], other: Iterable[Turn]) -> list[float]:
    """The logarithm of the ratio of the rates, for each pair of neighbouring turns, in their order.

    Turns of one side that follow each other count as one: steps, and so turns, may be longer in one than in the other.
    Pairs of which a side counted nothing are left out.
    """
    sides = sorted([(turn, True) for turn in own] + [(turn, False) for turn in other], key=lambda of: of[0].number)
    groups = [(is_own, _rate([turn for turn, _ in of])) for is_own, of in groupby(sides, key=lambda each: each[1])]
    pairs = (dict(pair) for pair in zip(groups[::2], groups[1::2], strict=False))
    return [math.log(pair[True] / pair[False]) for pair in pairs if pair[True] > 0 and pair[False] > 0]


def gain_interval(own: Sequence[Turn], other: Sequence[Turn], confidence: float = 0.95) -> Interval | None:
    """The logarithm of the ratio of the two rates, with its interval by the pairs of turns; None without two pairs.

    The estimate is that of all that was counted over all seconds: a stall at an epoch's end falls into single turns,
    and a mean of the turns' ratios would leave most of it out.
    """
    gains = log_gains(own, other)
    if len(gains) < 2 or min(_rate(own), _rate(other)) <= 0:
        return None
    spread, estimate = mean_interval(gains, confidence), math.log(_rate(own) / _rate(other))
    return Interval(estimate, estimate + spread.low - spread.estimate, estimate + spread.high - spread.estimate)


def ratio_of(rate: float, reference: float, interval: Interval) -> Ratio:
    """The ratio of two rates, as wide as the interval of its logarithm."""
    low, high = (math.exp(min(end - interval.estimate, 700.0)) for end in (interval.low, interval.high))
    return Ratio(rate / reference, rate / reference * low, rate / reference * high)


def _rate(turns: Iterable[Turn]) -> float:
    seconds = amount = 0.0
    for turn in turns:
        seconds, amount = seconds + turn.seconds, amount + turn.amount
    return amount / seconds
