"""What a screen compares, and how one figure is held to its margin. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tuner.analysis import stats
from tuner.analysis.stats import Noninferiority
from tuner.model import Outcome

SURE = 0.995
"""A figure that is beyond its margin at that confidence fails before all seeds have run."""


class CheckKind(StrEnum):
    """What a check looks at.

    A loss's ``worse`` is a share of how far the script's loss came down as written; a metric's a share of its value; a
    sample efficiency's the share of the samples that is lost. Of the weights' movement ``worse`` is what is missing of
    the baseline's; of the first gradient the largest difference either way. Neither of these two has bounds. Of a
    course ``worse`` and ``high`` are the largest distance in any pair, as ``course.py`` has it.
    """

    LOSS = "loss"
    EFFICIENCY = "sample efficiency"
    METRIC = "metric"
    WEIGHTS = "weights"
    GRADIENT = "gradient"
    COURSE = "course"


@dataclass(frozen=True)
class Pair:
    """The same seed with the script as written and with the config.

    ``metrics`` are those at the end, ``first_metrics`` the first values of those that were given again.
    """

    seed: int
    baseline: Outcome
    candidate: Outcome
    baseline_metrics: Mapping[str, float] = field(default_factory=dict)
    candidate_metrics: Mapping[str, float] = field(default_factory=dict)
    first_metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One figure held to its margin, as fractions; ``baseline`` and ``candidate`` are means over the seeds.

    ``worse`` is the mean worsening with its one-sided 95% bounds ``low`` and ``high``, as ``kind`` says. ``start`` is
    where the baseline's loss began. NaN where nothing is known. ``is_sure``: where it fails, more seeds could hardly
    change that.
    """

    kind: CheckKind
    name: str
    baseline: float
    candidate: float
    worse: float
    low: float
    high: float
    margin: float
    verdict: Noninferiority
    start: float | None = None
    is_sure: bool = True


def confidence() -> float:
    """Of each one-sided bound, so that looking after 3 and after 6 seeds keeps 95% over both (Pocock)."""
    return 1 - stats.pocock_level(0.10, 2) / 2


def held_to(
    kind: CheckKind,
    name: str,
    values: Sequence[tuple[float | None, float | None]],
    worse: Sequence[float],
    margin: float,
) -> Check:
    """The check of a figure: its values as written and with the config, by seed, and how much worse each is.

    Inconclusive where a value is missing, or isn't finite as written; one of the config that isn't finite fails.
    """
    known = [(b, c) for b, c in values if b is not None and c is not None and math.isfinite(b)]
    if len(known) < len(values) or not known:
        return unknown(kind, name, margin)
    before, after = mean(b for b, _ in known), mean(c for _, c in known)
    if not all(math.isfinite(c) for _, c in known):
        return Check(kind, name, before, after, math.inf, math.inf, math.inf, margin, Noninferiority.FAIL)
    low, high = stats.one_sided_bounds(worse, confidence())
    verdict = stats.non_inferior(worse, margin, confidence())
    is_sure = is_surely_beyond(worse, margin)
    return Check(kind, name, before, after, mean(worse), low, high, margin, verdict, is_sure=is_sure)


def is_surely_beyond(worse: Sequence[float], margin: float) -> bool:
    """Whether a figure is so much worse, by seed, that more seeds could hardly change it; as one that isn't finite."""
    return not all(map(math.isfinite, worse)) or stats.one_sided_bounds(worse, SURE)[0] > margin


def unknown(kind: CheckKind, name: str, margin: float) -> Check:
    """The check of a figure that wasn't seen."""
    return Check(kind, name, math.nan, math.nan, math.nan, math.nan, math.nan, margin, Noninferiority.INCONCLUSIVE)


def worst(verdicts: Iterable[Noninferiority]) -> Noninferiority:
    """The worst of them; a pass where there is none."""
    seen = set(verdicts)
    for verdict in (Noninferiority.FAIL, Noninferiority.INCONCLUSIVE):
        if verdict in seen:
            return verdict
    return Noninferiority.PASS


def mean(values: Iterable[float]) -> float:
    """The mean of at least one value."""
    listed = list(values)
    return sum(listed) / len(listed)
