"""What the losses of a run say: how far they came down, and as from which share of the samples. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tuner.analysis.stats import Floats
from tuner.model import LossSeries, Outcome, Ratio, Trial

FIRST_STEPS = 5
"""A loss begins at the mean of so many steps."""
LEARNED = 0.05
"""A loss has come down where it lost this share of where it ended at least: five times the usual margin of 1%."""
BEYOND_NOISE = 4.0
"""And so many standard errors of the difference between its first steps and its late ones."""
SLOWEST = 0.02
"""A candidate that learns as from a smaller share of the samples is said to learn as from this one."""
LATER = "more samples a second, but a loss is reached later than as written"
"""The label of a config that finals proved to be faster, and that isn't called so."""
_CHANGES_LEARNING = 3
_STRETCHES = 40
_CELLS = 400
_LOGS = np.linspace(math.log(SLOWEST), -math.log(SLOWEST), 801)


@dataclass(frozen=True)
class Curve:
    """A loss against the samples that the weights it was taken with were trained on; at least two points."""

    samples: Floats
    losses: Floats

    @property
    def first(self) -> float:
        """Where it begins."""
        return float(self.losses[:FIRST_STEPS].mean())

    @property
    def late(self) -> float:
        """The mean over the second half of the samples: the start says little of how it learns."""
        return float(self.losses[self.samples >= (self.samples[0] + self.samples[-1]) / 2].mean())

    @property
    def progress(self) -> float:
        """How far it came down; negative where it rose."""
        return self.first - self.late

    @property
    def variance(self) -> float:
        """Of the progress, by the noise from step to step (von Neumann's mean square successive difference, 1941)."""
        noise = float((np.diff(self.losses) ** 2).mean()) / 2
        late = int((self.samples >= (self.samples[0] + self.samples[-1]) / 2).sum())
        return noise * (1 / min(FIRST_STEPS, len(self.losses)) + 1 / late)


class Descent(StrEnum):
    """What the losses of a run do: those that go into the same optimizer steps count as one, their sum.

    ``DOWN``: all came down. ``LEVEL``: none did. ``MIXED``: some did, as where two networks work against each other.
    """

    DOWN = "down"
    LEVEL = "level"
    MIXED = "mixed"


def shows_loss(outcome: Outcome) -> bool:
    """Whether any training loss was seen, however seldom, and finite or not."""
    return outcome.measurement is not None and any(series.points for series in outcome.measurement.losses)


def gives_no_loss(baseline: Trial | None) -> bool:
    """Whether no training loss is to be seen in the script as written however long it is looked at: no framework trains
    in it, or PyTorch without a backward or an optimizer, and it only tells where a step ends. Not before it has run.
    """
    written = baseline.outcome if baseline is not None else None
    if written is None:
        return False
    known = written.knowledge
    without_backward = known.framework == "torch" and not (known.backwards or known.optimizers)
    return (not known.framework or without_backward) and not shows_loss(written)


def curves_of(outcome: Outcome) -> dict[str, Curve]:
    """Site → its loss, for those that were seen often enough to be a curve and are finite."""
    series = outcome.measurement.losses if outcome.measurement is not None else ()
    return {one.site: curve for one in series if (curve := _curve(one)) is not None}


def objectives_of(outcome: Outcome) -> dict[str, list[str]]:
    """The first site of each objective → the sites of all losses that it is the sum of."""
    grouped: dict[str, list[str]] = {}
    for series in outcome.measurement.losses if outcome.measurement is not None else ():
        grouped.setdefault(series.objective, []).append(series.site)
    return grouped


def progress_of(outcome: Outcome, sites: Iterable[str]) -> float:
    """How far the sum of these losses came down."""
    curves = curves_of(outcome)
    return sum(curves[site].progress for site in sites if site in curves)


def has_come_down(curves: Sequence[Curve]) -> bool:
    """Whether the sum of these losses came down by more than a small share of it, and beyond its noise."""
    progress = sum(curve.progress for curve in curves)
    return bool(curves) and progress > 0 and progress >= _least_change(curves)


def has_gone_up(curves: Sequence[Curve]) -> bool:
    """Whether the sum of these losses went up by as much as they have to come down by to tell."""
    progress = sum(curve.progress for curve in curves)
    return progress < 0 and -progress >= _least_change(curves)


def _least_change(curves: Sequence[Curve]) -> float:
    late = abs(sum(curve.late for curve in curves))
    noise = math.sqrt(sum(curve.variance for curve in curves))
    return max(LEARNED * late, BEYOND_NOISE * noise)


def descent_of(baselines: Sequence[Outcome]) -> Descent:
    """What the losses of the script as written do, in each of these runs; without any loss they are level."""
    seen: Mapping[str, list[bool]] = {}
    for outcome in baselines:
        curves = curves_of(outcome)
        for objective, sites in objectives_of(outcome).items():
            down = has_come_down([curves[site] for site in sites if site in curves])
            seen = {**seen, objective: [*seen.get(objective, []), down]}
    came_down = [all(each) for each in seen.values()]
    if came_down and all(came_down):
        return Descent.DOWN
    return Descent.MIXED if any(came_down) else Descent.LEVEL


def sample_efficiencies(pairs: Sequence[tuple[Curve, Curve]]) -> list[float]:
    """Of each pair (as written, and the candidate on the same seed) the share of the samples as from which it learns.

    0.8 where the candidate's loss after n samples is that of the script as written after 0.8 n; above 1 where it learns
    from fewer samples than that. Least squares over the factor by which samples are stretched. What is fitted is the
    difference of the pair, in which the noise of their common batches cancels, by that of a smooth curve: the
    decreasing one that is nearest to the mean of all seeds (isotonic regression; Ayer et al., Ann. Math. Stat. 26,
    1955). That of the faster side is stretched, so that nothing is extrapolated. Between ``SLOWEST`` and its inverse.
    """
    # Squares of losses that are far below or above 1 leave what a float can hold.
    largest = max(float(np.abs(curve.losses).max()) for both in pairs for curve in both) or 1.0
    runs = [(_Stretches(before, largest), _Stretches(after, largest)) for before, after in pairs]
    end = min(run.end for both in runs for run in both)
    fewest = [min(len(curve.losses) for curve in side) for side in zip(*pairs, strict=True)]
    edges = np.linspace(0.0, end, max(2, min(_STRETCHES, min(fewest) // 2)) + 1)
    # Each by its own points: coarser cells would make a straight line of how the side with more of them bends.
    shapes = [
        _Shape(side, end, min(_CELLS, points)) for side, points in zip(zip(*runs, strict=True), fewest, strict=True)
    ]
    slower = shapes[0].changes(edges, np.exp([log for log in _LOGS if log <= 0]))
    faster = shapes[1].changes(edges, np.exp([-log for log in _LOGS if log > 0]))
    changes = np.concatenate([slower, -faster])
    found = []
    for before, after in runs:
        apart = after.means(edges) - before.means(edges)
        floor = (1e-6 * max(before.scale, after.scale)) ** 2 + 1e-300  # also where both are 0 throughout
        weights = 1 / np.maximum(before.variances(edges) + after.variances(edges), floor)
        found.append(math.exp(_lowest(((apart - changes) ** 2 * weights).sum(axis=1))))
    return found


def _lowest(misfits: Floats) -> float:
    """The log factor at which the misfit is lowest, between those that were tried."""
    best = int(misfits.argmin())
    if not 0 < best < len(misfits) - 1:
        return float(_LOGS[best])
    left, least, right = (float(misfit) for misfit in misfits[best - 1 : best + 2])
    bend = left - 2 * least + right
    # The lowest point of the parabola through the three.
    offset = (left - right) / (2 * bend) if least > 0 and bend > 0 else 0.0
    return float(_LOGS[best] + offset * (_LOGS[1] - _LOGS[0]))


def least_efficiency(baseline: Outcome, candidate: Outcome) -> float | None:
    """The least sample efficiency of a pair's losses that came down as written; None where these can't tell."""
    if descent_of([baseline]) is not Descent.DOWN:
        return None
    before, after = curves_of(baseline), curves_of(candidate)
    known = [(before[site], after[site]) for site in before if site in after and has_come_down([before[site]])]
    return min((sample_efficiencies([pair])[0] for pair in known), default=None)


def time_to_loss(speedup: Ratio, efficiency: Ratio) -> Ratio:
    """How many times sooner a config reaches a loss: its ratio of rates times its sample efficiency.

    The interval of a product of independent estimates, from those of their logs (Zou and Donner, Stat. Med. 27, 2008).
    """
    ratio = speedup.ratio * efficiency.ratio
    below = math.hypot(_log_ratio(speedup.ratio, speedup.low), _log_ratio(efficiency.ratio, efficiency.low))
    above = math.hypot(_log_ratio(speedup.high, speedup.ratio), _log_ratio(efficiency.high, efficiency.ratio))
    return Ratio(ratio, ratio * math.exp(-below), ratio * math.exp(above) if above < 700 else math.inf)


def is_later(speedup: Ratio, efficiency: Ratio, tier: int) -> bool:
    """Whether a config reaches a loss later than the script as written, for all its speed.

    What changes the optimisation (tier 3) is held to the estimate: of it nobody knows that it learns alike. The
    others have to be later by the whole interval.
    """
    sooner = time_to_loss(speedup, efficiency)
    return (sooner.ratio if tier >= _CHANGES_LEARNING else sooner.high) < 1.0


def _log_ratio(high: float, low: float) -> float:
    return math.log(high / low) if low > 0 and high < math.inf else math.inf


class _Stretches:
    """A curve as its means over stretches of samples, in units of ``unit``."""

    def __init__(self, curve: Curve, unit: float) -> None:
        losses = curve.losses / unit
        # A loss stands for the samples around its own: half of those to its neighbours.
        beyond = 2 * curve.samples[-1] - curve.samples[-2]
        ends = (curve.samples + np.append(curve.samples[1:], beyond)) / 2
        self._bounds = np.concatenate([curve.samples[:1], ends])
        self._integral = np.concatenate([[0.0], np.cumsum(losses * np.diff(self._bounds))])
        self._noise = np.concatenate([[0.0], np.diff(losses) ** 2 / 2])
        self._starts = curve.samples
        self.end = float(self._bounds[-1])
        self.scale = float(np.abs(losses).max())

    def means(self, edges: Floats) -> Floats:
        """Over the stretches between these edges."""
        integral = np.interp(edges, self._bounds, self._integral)
        means: Floats = np.diff(integral) / np.diff(edges)
        return means

    def variances(self, edges: Floats) -> Floats:
        """Of these means, by the noise from step to step; a stretch tells of its neighbours' noise as well."""
        places = np.clip(np.searchsorted(edges, self._starts, side="right") - 1, 0, len(edges) - 2)
        sizes = np.maximum(np.bincount(places, minlength=len(edges) - 1), 1)
        return _smoothed(np.bincount(places, self._noise, len(edges) - 1) / sizes) / sizes


class _Shape:
    """The decreasing curve nearest to the mean of several."""

    def __init__(self, curves: Sequence[_Stretches], end: float, cells: int) -> None:
        self._edges = np.linspace(0.0, end, cells + 1)
        means = sum((curve.means(self._edges) for curve in curves), np.zeros(cells)) / len(curves)
        self._integral = np.concatenate([[0.0], np.cumsum(_decreasing(means) * np.diff(self._edges))])

    def changes(self, edges: Floats, factors: Floats) -> Floats:
        """How much higher each stretch lies once its samples count by a factor, at most 1: a row for each of them."""
        stretched = np.multiply.outer(factors, edges)
        means = np.diff(np.interp(stretched, self._edges, self._integral)) / np.diff(stretched)
        changes: Floats = means - np.diff(np.interp(edges, self._edges, self._integral)) / np.diff(edges)
        return changes


def _decreasing(values: Floats) -> Floats:
    """The nearest values that never rise: neighbours that do are pooled."""
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        total, size = value, 1
        while pools and pools[-1][0] / pools[-1][1] <= total / size:
            before, length = pools.pop()
            total, size = before + total, length + size
        pools.append((total, size))
    return np.concatenate([np.full(size, total / size) for total, size in pools])


def _smoothed(values: Floats) -> Floats:
    """Each value in the mean with its neighbours."""
    padded = np.concatenate([values[:1], values, values[-1:]])
    smoothed: Floats = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    return smoothed


def _curve(series: LossSeries) -> Curve | None:
    """A loss is taken before the step that it leads to: with weights that were trained on what came before."""
    ends = np.array([samples for samples, _ in series.points], dtype=np.float64)
    losses = np.array([loss for _, loss in series.points], dtype=np.float64)
    if len(losses) < 2 or not np.isfinite(losses).all():
        return None
    return Curve(np.concatenate([[0.0], ends[:-1]]), losses)
