"""How large a gain is that was proven: an interval that holds although only lucky rounds prove a small one. Pure.

What is told of the proven gains alone is too high, the more so the smaller they are beside the noise: of the others,
whose rounds said less, nothing is told. So the rounds are held against what those of each gain say *given that they
prove one*, and the gains remain that they don't contradict (Weinstein, Fithian and Benjamini, Selection adjusted
confidence intervals with more power to determine the sign, JASA 108, 2013). The noise isn't known either: given a gain
the sum of the rounds' squares around it says all that there is to know of the noise, and their direction is any
(Fithian, Sun and Taylor, Optimal inference after model selection, arXiv 1410.2597, 2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tuner.analysis.stats import Floats, Interval, student_t_quantile

DEEPEST = 2.5
"""However lucky the rounds may have been, the interval reaches no more than so many times as far down as the one that
decided it: three rounds that say 2.0 might leave everything open else."""
_NO_NOISE = 1e-20
_ANGLES = (np.arange(400) + 0.5) / 400 * math.pi - math.pi / 2
_TRIED = 200
_CERTAIN = 0.999
"""Where the least gain that is looked at is proven with such a chance, no luck was needed."""
_BEYOND = 1.5
"""So many times the reach of the usual interval, above the mean, no gain is left that lucky rounds don't contradict."""


@dataclass(frozen=True)
class Proof:
    """What rounds had to say to prove a gain: their t statistic above ``later``.

    Or above ``at_once``, where that of the ``first`` of them was above ``first_look`` already.
    """

    later: float
    first: int = 0
    first_look: float = math.inf
    at_once: float = math.inf


def proven_interval(gains: Sequence[float], proof: Proof, confidence: float) -> Interval:
    """The logarithmic gain that three or more rounds prove, with an interval that holds given that they do.

    The lower end is 0 at least, as what is proven is proven. The estimate is the middle, or the rounds' mean where that
    is lower: of small gains it is nearer to the truth than that and than the estimate that is unbiased in the median
    (``tests/benchmarks/told_gain.py``). Of a gain that is far beyond its proof both are the usual ones, of a t
    interval. Raises ValueError on fewer rounds, and where they are all alike.
    """
    count, mean = len(gains), sum(gains) / max(1, len(gains))
    squares = sum((gain - mean) ** 2 for gain in gains)
    if count < 3 or squares <= _NO_NOISE:
        raise ValueError(f"it takes three gains that aren't all alike, unlike {list(gains)}")
    error = math.sqrt(squares / (count - 1) / count)
    usual = student_t_quantile((1 + confidence) / 2, count - 1) * error
    least = max(0.0, mean - DEEPEST * max(usual, proof.later * error))
    if _held_against(np.array([least]), mean, squares, count, proof)[1][0] > _CERTAIN:
        return Interval(mean, mean - usual, mean + usual)
    tried = np.linspace(least, mean + _BEYOND * usual, _TRIED)
    likelier, _ = _held_against(tried, mean, squares, count, proof)
    low, high = _ends(tried, likelier, confidence)
    return Interval(min(mean, (low + high) / 2), low, high)


def _ends(tried: Floats, likelier: Floats, confidence: float) -> tuple[float, float]:
    """The least and the highest gain that isn't contradicted, between those that were tried, too."""
    inside = np.flatnonzero(likelier <= confidence)
    if not len(inside):
        return float(tried[0]), float(tried[-1])  # they contradict each gain, which leaves any of them
    ends = []
    for last, beyond in ((inside[0], inside[0] - 1), (inside[-1], inside[-1] + 1)):
        if not 0 <= beyond < len(tried):
            ends.append(float(tried[last]))
            continue
        share = (confidence - likelier[last]) / (likelier[beyond] - likelier[last])
        ends.append(float(tried[last] + share * (tried[beyond] - tried[last])))
    return ends[0], ends[1]


def _held_against(
    tried: Floats, mean: float, squares: float, count: int, proof: Proof
) -> tuple[Floats, Floats]:
    """Of each gain that is tried how likely rounds that prove one are to say what is likelier than what these say, and
    how likely rounds with as much noise are to prove one.

    A row is a gain, a column an angle, of which the tangent is the t statistic against that gain, up to a factor: the
    rounds' direction is that angle from their own spread. The likeliest statistics make up the shortest region.
    """
    around = np.sqrt(squares + count * (mean - tried) ** 2)[:, None]
    cosine, tangent = np.cos(_ANGLES)[None, :], np.tan(_ANGLES)[None, :]
    proves = _chance_to_prove(tried[:, None] / (around * cosine) + tangent / math.sqrt(count), count, proof)
    mass, density = cosine ** (count - 2), cosine**count * proves
    proving = mass * proves
    total = proving.sum(axis=1)
    seen = np.arctan(math.sqrt(count) * (mean - tried) / math.sqrt(squares))
    here = np.cos(seen) ** count * _chance_to_prove(np.array([mean / math.sqrt(squares)]), count, proof)
    likelier = (proving * (density > here[:, None])).sum(axis=1) / total
    return likelier, total / mass.sum()


def _chance_to_prove(share: Floats, count: int, proof: Proof) -> Floats:
    """How likely so many rounds prove a gain whose mean is such a ``share`` of the root of their squares around it."""
    statistic = share * math.sqrt(count * (count - 1))
    surely = statistic > min(proof.later, proof.at_once if proof.first >= count else math.inf)
    if not 2 < proof.first < count or proof.at_once >= proof.later:
        return surely.astype(np.float64)
    needed, chances = _first_look(count, proof.first, proof.first_look)
    return np.where(surely, 1.0, np.where(statistic > proof.at_once, np.interp(share, needed, chances), 0.0))


@lru_cache(maxsize=64)
def _first_look(count: int, first: int, least: float) -> tuple[Floats, Floats]:
    """The share of the mean of all rounds with which the ``first`` of them have a t statistic above ``least``, and how
    likely it is with that share.

    The rounds around their mean have any direction: along the difference of the means of both parts, within the first
    part, and within the other one, of ``count - first - 1`` dimensions.
    """
    angles = (np.arange(80) + 0.5) / 80 * math.pi
    along, within = np.meshgrid(angles, angles / 2)
    weight, own = np.sin(along) ** (count - 3), np.sin(along)
    if count - first > 1:
        weight = weight * np.sin(within) ** (first - 2) * np.cos(within) ** (count - first - 2)
        own = own * np.sin(within)
    apart = np.cos(along) * math.sqrt((count - first) / (count * first))
    needed = (least * own / math.sqrt(first * (first - 1)) - apart).ravel()
    order = np.argsort(needed, kind="stable")
    chances = np.cumsum(weight.ravel()[order])
    return needed[order], chances / chances[-1]
