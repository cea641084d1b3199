"""The loss of a screen's first step, before any training: whether batches of other sizes have another one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tuner.analysis.checks import Pair, mean
from tuner.analysis.learning import curves_of, has_come_down
from tuner.analysis.stats import Floats
from tuner.model import LossSeries, Outcome

APART = 0.05
"""A loss depends on the batch where it begins so much higher or lower, as a share of what it is as written, or of how
far it comes down where that is less: what is little of the loss may be half of its way.
"""
BEYOND_CHANCE = 4.0
"""And by so many standard errors of what batches of both sizes differ in by chance."""
_FIRST_LOSSES = 10
_FEWEST_BENT = 3
_ENDED_WITHIN = 2
"""Steps at the end of a run whose losses weren't read."""


def of_batch(pairs: Sequence[Pair]) -> str:
    """That a loss is another one in batches of the candidates' size, for people; "" where it isn't, or isn't seen.

    A mean over samples is the same in batches of any size, as long as the weights are. A sum isn't, nor is what is
    taken between the samples of a batch (pairs of a contrastive loss, a correlation): how soon such a loss comes down
    to a value says nothing. The seed, and so the weights of the first step, are the same on both sides of a pair.
    """
    sites = {series.site for pair in pairs for series in _all_series(pair.baseline)}
    return next((told for site in sorted(sites) if (told := _told_of(site, pairs))), "")


def _told_of(site: str, pairs: Sequence[Pair]) -> str:
    firsts: list[tuple[tuple[float, float], tuple[float, float]]] = []
    losses: tuple[list[Floats], list[Floats]] = ([], [])
    for pair in pairs:
        before, after = _begun(pair.baseline, site), _begun(pair.candidate, site)
        if before is None or after is None or before[0][0] == after[0][0]:
            return ""
        firsts.append((before[0], after[0]))
        for side, points in zip(losses, (before, after), strict=True):
            side.append(np.array([loss for _, loss in points]))
    differences = [after - before for (_, before), (_, after) in firsts]
    apart, level = abs(mean(differences)), mean(before for (_, before), _ in firsts)
    curves = [curves_of(pair.baseline)[site] for pair in pairs]
    way = mean(curve.progress for curve in curves) if has_come_down(curves) else math.inf
    by_chance = BEYOND_CHANCE * math.sqrt(sum(map(_variance_of_mean, losses)))
    one_way = all(d > 0 for d in differences) or all(d < 0 for d in differences)
    if not one_way or apart <= max(APART * min(abs(level), way), by_chance):
        return ""
    (written, _), (size, _) = firsts[0]
    begins = mean(after for _, (_, after) in firsts)
    return (
        f"with the same weights the training loss is {begins:.4g} in a first step on {size:.6g} samples, and"
        f" {level:.4g} on {written:.6g} as written: it depends on the size of the batch, and can't be compared"
    )


def _all_series(outcome: Outcome) -> Sequence[LossSeries]:
    return outcome.measurement.losses if outcome.measurement is not None else ()


def _begun(outcome: Outcome, site: str) -> Sequence[tuple[float, float]] | None:
    """Samples trained on and loss, of each step from the first one on; None where the first one's isn't known alone."""
    points = next((series.points for series in _all_series(outcome) if series.site == site), ())
    if len(points) < 2 or not all(math.isfinite(loss) for _, loss in points):
        return None
    # Earlier versions read the first two steps' as one, and several steps of one call have one loss.
    each = points[1][0] == 2 * points[0][0] and outcome.knowledge.steps <= len(points) + _ENDED_WITHIN
    return points if each else None


def _variance_of_mean(runs: Sequence[Floats]) -> float:
    """Of the mean over these runs of a step's loss. Not a share of each one's for certain: where the script doesn't
    shuffle they have the same batches, and chance in common.
    """
    together = np.mean([run[: min(map(len, runs))] for run in runs], axis=0)
    return max(mean(map(_variance, runs)) / len(runs), _variance(together))


def _variance(losses: Floats) -> float:
    """Of a step's loss, by what changes from step to step, over so many first ones as say most. By second differences,
    where there are any: a loss that comes down fast, as in a few large batches, isn't rough for that.
    """
    squares = np.diff(losses, 2) ** 2 / 6 if len(losses) > _FEWEST_BENT else np.diff(losses) ** 2 / 2
    means = np.cumsum(squares) / np.arange(1, len(squares) + 1)
    return float(means[min(_FIRST_LOSSES, len(means)) - 1 :].max())
