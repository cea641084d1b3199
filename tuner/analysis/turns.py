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

DISTURBED = 0.1
"""Where others had more than that share of the cores' time a turn says little."""
FEWEST_CALM = 4
"""With fewer calm pairs of turns than that, all count."""


class Turn(NamedTuple):
    """One turn of a trial: its number among those of all who took turns, what was counted in it, and its seconds.

    ``lost``: the share of the cores' time that others had.
    """

    number: int
    amount: float
    seconds: float
    lost: float = 0.0


def pairs_of_turns(own: Iterable[Turn], other: Iterable[Turn]) -> list[tuple[Turn, Turn]]:
    """Each pair of neighbouring turns, one of either side, in their order.

    Turns of one side that follow each other count as one: steps, and so turns, may be longer in one than in the other;
    and so do pairs of which a side counted nothing, with the next one. Pairs that were disturbed are left out where
    enough others remain: that bursts of others' load fall into single turns is what makes these worth more than one
    long window.
    """
    sides = sorted([(turn, True) for turn in own] + [(turn, False) for turn in other], key=lambda of: of[0].number)
    groups = [(is_own, _together([turn for turn, _ in of])) for is_own, of in groupby(sides, key=lambda each: each[1])]
    both = (dict(pair) for pair in zip(groups[::2], groups[1::2], strict=False))
    pairs = _with_counts([(pair[True], pair[False]) for pair in both])
    calm = [pair for pair in pairs if max(turn.lost for turn in pair) <= DISTURBED]
    return calm if len(calm) >= FEWEST_CALM else pairs


def _with_counts(pairs: Sequence[tuple[Turn, Turn]]) -> list[tuple[Turn, Turn]]:
    """The pairs, those of which a side counted nothing joined to the next one, the last to the one before."""

    def is_empty(pair: tuple[Turn, Turn]) -> bool:
        return min(turn.amount for turn in pair) <= 0

    def joined(one: tuple[Turn, Turn], other: tuple[Turn, Turn]) -> tuple[Turn, Turn]:
        return _together([one[0], other[0]]), _together([one[1], other[1]])

    kept: list[tuple[Turn, Turn]] = []
    for pair in pairs:
        if kept and is_empty(kept[-1]):
            kept[-1] = joined(kept[-1], pair)
        else:
            kept.append(pair)
    if len(kept) > 1 and is_empty(kept[-1]):
        last = kept.pop()
        kept[-1] = joined(kept[-1], last)
    return [pair for pair in kept if not is_empty(pair)]


def gain_interval(pairs: Sequence[tuple[Turn, Turn]], confidence: float = 0.95) -> Interval | None:
    """The logarithm of the ratio of the two rates, with its interval by the pairs of turns; None without two pairs.

    The estimate is that of all that was counted over all seconds: a stall at an epoch's end falls into single turns,
    and a mean of the turns' ratios would leave most of it out.
    """
    if len(pairs) < 2:
        return None
    own, other = _together([own for own, _ in pairs]), _together([other for _, other in pairs])
    spread = mean_interval([math.log(_rate(one) / _rate(two)) for one, two in pairs], confidence)
    estimate = math.log(_rate(own) / _rate(other))
    return Interval(estimate, estimate + spread.low - spread.estimate, estimate + spread.high - spread.estimate)


def _together(turns: Sequence[Turn]) -> Turn:
    seconds = sum(turn.seconds for turn in turns)
    lost = sum(turn.lost * turn.seconds for turn in turns) / seconds
    return Turn(turns[0].number, sum(turn.amount for turn in turns), seconds, lost)


def _rate(turn: Turn) -> float:
    return turn.amount / turn.seconds
