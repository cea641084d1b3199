"""What trials that took turns say of each other: the ratio of their rates, by neighbouring turns. Pure.

What the machine does for seconds at a time meets both sides of a pair of turns alike (Bulej et al., Duet benchmarking,
ICPE 2020), so that the ratio of two rates is sharper than either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple

import numpy as np

from tuner.analysis.stats import Interval, degrees_of, mean_error, student_t_quantile
from tuner.model import Measurement

DISTURBED = 0.1
"""Where others had more than that share of the cores' time a turn says little."""
SPARSE = 0.5
"""Of what a side counts in a pair on average, and of its mean rate: one that stays below both counts next to nothing,
and doesn't stand for itself. One that is merely short is as fast as others, and one that is merely slow counts as much.
"""
TOLD_TO = 0.05
"""A proven ratio is to be told with a relative 95% half-width of that."""
FOUR_OF_FIVE = 0.8416
"""The quantile of the standard normal distribution that four of five values stay below."""
FEWEST_CALM = 4
"""With fewer calm pairs of turns than that, all count."""
FEW_TURNS = "measured by itself: beside the script as written its window held too few turns"
"""What is said of a trial that was run once more."""
MOST_ALIKE = 4.0
"""How alike trials of one study scatter, in degrees of freedom (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004): those of
eight studies on two shared cores did as with 5.5.
"""
UNLIKE = 4.0
"""A trial whose variance is so many times that of the others is taken by itself. By what is known of quiet trials, one
in twenty that scatter thrice as much and are as fast as the best one were taken for losers; less than 2% are.
"""


class Turn(NamedTuple):
    """One turn of a trial: its number among those of all who took turns, what was counted in it, and its seconds.

    ``lost``: the share of the cores' time that others had.
    """

    number: int
    amount: float
    seconds: float
    lost: float = 0.0


class Scatter(NamedTuple):
    """How pairs of turns scatter in a study: the ``variance`` of the logarithms of their ratios, in the long run, and
    the ``degrees`` of freedom with which that is known of one more trial.
    """

    variance: float
    degrees: float


def pairs_of_turns(own: Iterable[Turn], other: Iterable[Turn]) -> list[tuple[Turn, Turn]]:
    """Each pair of neighbouring turns, one of either side, in their order.

    Pairs of which a side counted next to nothing count together with their neighbours. Pairs that were disturbed are
    left out where enough others remain: that bursts of others' load fall into single turns is what makes these worth
    more than one long window.
    """
    return calm_pairs(neighbouring_pairs(own, other))


def neighbouring_pairs(own: Iterable[Turn], other: Iterable[Turn]) -> list[tuple[Turn, Turn]]:
    """As ``pairs_of_turns``, with those that were disturbed, or counted nothing.

    Turns of one side that follow each other count as one: steps, and so turns, may be longer in one than in the other.
    """
    sides = sorted([(turn, True) for turn in own] + [(turn, False) for turn in other], key=lambda of: of[0].number)
    groups = [(is_own, together([turn for turn, _ in of])) for is_own, of in groupby(sides, key=lambda each: each[1])]
    both = (dict(pair) for pair in zip(groups[::2], groups[1::2], strict=False))
    return [(pair[True], pair[False]) for pair in both]


def calm_pairs(pairs: Sequence[tuple[Turn, Turn]], fewest: int = FEWEST_CALM) -> list[tuple[Turn, Turn]]:
    """The pairs that nobody disturbed, where there are enough of them; else all. Those count of which both sides do.

    Where they count joined, whole groups are left out: without the turn that fills a buffer, those that live on it
    would be too fast.
    """
    calm = [pair for pair in pairs if _is_calm(pair)]
    joined, every = _with_counts(calm), _with_counts(pairs)
    if len(joined) < len(calm):
        joined = [pair for pair in every if _is_calm(pair)]
    return joined if len(joined) >= fewest else every


def _is_calm(pair: tuple[Turn, Turn]) -> bool:
    return max(turn.lost for turn in pair) <= DISTURBED


def _with_counts(pairs: Sequence[tuple[Turn, Turn]]) -> list[tuple[Turn, Turn]]:
    """The pairs, as many of them joined to one as it takes for none of them to be ``SPARSE``.

    A loop that goes by fits and starts, longer than its turns, is told by what holds both. At least ``FEWEST_CALM`` are
    left, as long as both sides of each count anything. What is over at the end is joined to the last one.
    """
    for size in range(1, len(pairs) + 1):
        last = max(0, len(pairs) - size - len(pairs) % size)
        groups = [pairs[place : place + size] for place in range(0, last, size)] + [pairs[last:]]
        joined = [(together([own for own, _ in of]), together([other for _, other in of])) for of in groups]
        fewest = min(_least_share(side) for side in zip(*joined, strict=True))
        if fewest >= SPARSE or (fewest > 0 and len(pairs) // (size + 1) < FEWEST_CALM):
            return joined
    return []


def _least_share(turns: Sequence[Turn]) -> float:
    """What the one counted that counted least, as a share of the mean, or of what the mean rate gives in its seconds
    where that is less; 0 where none counted anything.
    """
    every = together(turns)
    if every.amount <= 0:
        return 0.0
    mean, rate = every.amount / len(turns), every.amount / every.seconds
    return min(turn.amount / min(mean, turn.seconds * rate) for turn in turns)


def gain_interval(
    pairs: Sequence[tuple[Turn, Turn]], confidence: float = 0.95, scatter: Scatter | None = None
) -> Interval | None:
    """The logarithm of the ratio of the two rates, with its interval by the pairs of turns; None without two pairs.
    ``scatter``: what other trials say of it, with which that of these pairs is drawn together (a moderated t), unless
    these are ``UNLIKE`` them.

    The estimate is that of all that was counted over all seconds: a stall at an epoch's end falls into single turns,
    and a mean of the turns' ratios would leave most of it out. So does the spread of their logarithms, which turns
    that are slow now and then hardly move: it is that of what each pair adds to the estimate, as in ``rate_interval``.
    """
    if len(pairs) < 2:
        return None
    own, other = together([own for own, _ in pairs]), together([other for _, other in pairs])
    added = [_beyond_mean(mine, own) - _beyond_mean(theirs, other) for mine, theirs in pairs]
    error, degrees = mean_error(len(pairs) * np.asarray(added, dtype=np.float64))
    if scatter is not None and len(pairs) * error**2 <= UNLIKE * scatter.variance:
        squares = degrees * error**2 + scatter.degrees * scatter.variance / len(pairs)
        degrees += scatter.degrees
        error = math.sqrt(squares / degrees)
    half, estimate = student_t_quantile((1 + confidence) / 2, degrees) * error, log_ratio((own, other))
    return Interval(estimate, estimate - half, estimate + half)


def scatter_of(measurements: Iterable[Measurement]) -> Scatter | None:
    """How pairs of turns scatter by these trials; None where none of them took turns.

    Their median: it is rather too large, since an interval also pays for turns that hang together, and one trial of a
    loop that goes by fits and starts says nothing of the others.
    """
    variances, degrees = [], 0.0
    for measurement in measurements:
        reference = measurement.reference
        if reference is None or reference.pairs < 2 or not 0 < reference.gain.low <= reference.gain.high < math.inf:
            continue
        known = degrees_of(reference.pairs, 0.0, fitted=1)
        half = math.log(reference.gain.high / reference.gain.low) / 2
        variances.append(reference.pairs * (half / student_t_quantile(0.975, known)) ** 2)
        degrees += known
    # Half of them: few trials may be alike by chance.
    return Scatter(median(variances), min(MOST_ALIKE, degrees / 2)) if variances else None


def _beyond_mean(turn: Turn, every: Turn) -> float:
    """What the turn counted beyond the mean rate, as a share of all that was: that much is the rate higher for it."""
    return turn.amount / every.amount - turn.seconds / every.seconds


def noise_within(measurement: Measurement, window_s: float) -> float | None:
    """How far a ratio by turns would be off after a window of ``window_s`` seconds (> 0): the standard deviation of its
    logarithm, rather too large, by the pairs of turns of this trial. None where it had fewer than two of them.
    """
    reference = measurement.reference
    if reference is None or reference.pairs < 2 or reference.gain.low <= 0:
        return None
    half = math.log(reference.gain.high / reference.gain.low) / 2
    error = half / student_t_quantile(0.975, reference.pairs - 1)
    return error * math.sqrt(sum(block.seconds for block in measurement.blocks) / window_s)


def rounds_to_tell(noise: float, fewest: int, most: int, rivals: int = 1) -> int | None:
    """How many rounds tell a ratio to ``TOLD_TO`` in four of five studies, where the logarithm of one round's is off by
    ``noise`` (a standard deviation); None where so many as ``most`` don't. So many ``rivals`` may be the best one:
    whose ratio is told was lucky among them (Bonferroni).

    Rounds show a noise of their own: four of five times no more than by the quantile of chi squared (the approximation
    by Wilson and Hilferty, 1931).
    """
    for rounds in range(max(2, fewest), most + 1):
        shape = 2 / (9 * (rounds - 1))
        shown = noise * (1 - shape + FOUR_OF_FIVE * math.sqrt(shape)) ** 1.5
        if student_t_quantile(1 - 0.025 / rivals, rounds - 1) * shown / math.sqrt(rounds) <= math.log1p(TOLD_TO):
            return rounds
    return None


def log_ratio(pair: tuple[Turn, Turn]) -> float:
    """The logarithm of the ratio of the first one's rate to the other's."""
    own, other = pair
    return math.log(own.amount / own.seconds / (other.amount / other.seconds))


def together(turns: Sequence[Turn]) -> Turn:
    """The turns as one, with the number of the first."""
    seconds = sum(turn.seconds for turn in turns)
    lost = sum(turn.lost * turn.seconds for turn in turns) / seconds
    return Turn(turns[0].number, sum(turn.amount for turn in turns), seconds, lost)
