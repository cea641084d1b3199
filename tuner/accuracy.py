"""Whether a config learns as well as the script as written: paired seeds, equal samples, a declared margin. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner import stats
from tuner.model import Config, Outcome

SEEDS = 3
MOST_SEEDS = 6
LOSS = "training loss"
FIRST_STEPS = 5


@dataclass(frozen=True)
class AccuracyLimits:
    """Margins, as fractions of the baseline's value. ``max_loss_increase`` of None leaves the loss alone; it is a
    fraction of the loss, or of the way that it has come down where that is more.

    ``max_metric_drop`` bounds metrics that are better when higher; ``patterns`` gives the regular expression that
    finds a metric in what the script prints. ``samples`` is how far a screen trains, None for a share of a trial.
    """

    max_loss_increase: float | None = 0.01
    max_metric_drop: Mapping[str, float] = field(default_factory=dict)
    patterns: Mapping[str, str] = field(default_factory=dict)
    samples: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is anything to hold a config to."""
        return self.max_loss_increase is not None or bool(self.max_metric_drop)


@dataclass(frozen=True)
class Pair:
    """The same seed with the script as written and with the config. ``metrics`` are those at the end."""

    seed: int
    baseline: Outcome
    candidate: Outcome
    baseline_metrics: Mapping[str, float] = field(default_factory=dict)
    candidate_metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One figure held to its margin. ``worse`` is the mean relative worsening, with one-sided 95% bounds.

    ``start`` is where the baseline's figure began, where the share is one of the way from there.
    """

    name: str
    baseline: float
    candidate: float
    worse: float
    low: float
    high: float
    margin: float
    verdict: stats.Verdict
    start: float | None = None


@dataclass(frozen=True)
class Screened:
    """What a screen showed of a config. ``samples`` counts steps where the script's samples can't be counted."""

    config: Config
    verdict: stats.Verdict
    checks: tuple[Check, ...]
    seeds: int
    samples: int
    reason: str = ""
    unit: str = "samples"


def judge(config: Config, pairs: Sequence[Pair], limits: AccuracyLimits, samples: int) -> Screened:
    """The verdict over all figures: the worst of theirs. A run that failed, or a loss that isn't finite, fails."""
    unit = next((p.baseline.measurement.unit for p in pairs if p.baseline.measurement is not None), "samples")
    for pair in pairs:
        if not pair.candidate.complete:
            reason = pair.candidate.detail or f"{pair.candidate.kind}: {pair.candidate.reason}"
            return Screened(config, stats.Verdict.FAIL, (), len(pairs), samples, f"seed {pair.seed}: {reason}")
        if not pair.baseline.complete:
            reason = f"seed {pair.seed}: the script as written gave no figure: {pair.baseline.detail}"
            return Screened(config, stats.Verdict.INCONCLUSIVE, (), len(pairs), samples, reason)
    checks = []
    if limits.max_loss_increase is not None:
        losses = [(_late_loss(p.baseline), _late_loss(p.candidate)) for p in pairs]
        scales = [_loss_scale(p.baseline) for p in pairs]
        check = _check(LOSS, losses, scales, limits.max_loss_increase, higher_is_better=False)
        firsts = [first for p in pairs if (first := _first_loss(p.baseline)) is not None]
        checks.append(replace(check, start=_mean(firsts) if firsts else None))
    for name, margin in limits.max_metric_drop.items():
        values = [(p.baseline_metrics.get(name), p.candidate_metrics.get(name)) for p in pairs]
        # Of a baseline of 0 there is no share; there the difference itself is held to the margin.
        scales = [abs(before or 0.0) or 1.0 for before, _ in values]
        checks.append(_check(name, values, scales, margin, higher_is_better=True))
    verdict = _worst(check.verdict for check in checks)
    return Screened(config, verdict, tuple(checks), len(pairs), samples, unit=unit)


def metrics_in(text: str, patterns: Mapping[str, str]) -> dict[str, float]:
    """The last value of each metric that the patterns find in what a script printed."""
    found: dict[str, float] = {}
    for name, pattern in patterns.items():
        for match in re.finditer(pattern, text):
            try:
                found[name] = float(match[1] if match.re.groups else match[0])
            except (TypeError, ValueError):
                continue  # the pattern matches other text as well
    return found


def _late_loss(outcome: Outcome) -> float | None:
    """The mean training loss over the second half of the samples: the start says little of how it learns."""
    losses = outcome.measurement.losses if outcome.measurement is not None else ()
    if not losses:
        return None
    half = losses[-1][0] / 2
    late = [loss for samples, loss in losses if samples > half]
    return sum(late) / len(late) if late else None


def _loss_scale(baseline: Outcome) -> float:
    """What a difference of losses is held against: the late loss, or how far it has come down, whichever is more.

    A loss that has come from 2.3 to 0.01 doubles by chance; as a share of the way it came that is nothing.
    """
    first, late = _first_loss(baseline), _late_loss(baseline)
    if first is None or late is None:
        return 1.0
    return max(abs(late), first - late) or 1.0


def _first_loss(outcome: Outcome) -> float | None:
    losses = outcome.measurement.losses if outcome.measurement is not None else ()
    return _mean(loss for _, loss in losses[:FIRST_STEPS]) if losses else None


def _check(
    name: str,
    values: Sequence[tuple[float | None, float | None]],
    scales: Sequence[float],
    margin: float,
    *,
    higher_is_better: bool,
) -> Check:
    sign = -1 if higher_is_better else 1
    known = [
        (before, after, sign * (after - before) / scale)
        for (before, after), scale in zip(values, scales, strict=True)
        if before is not None and after is not None
    ]
    if len(known) < len(values) or not known:
        return Check(name, math.nan, math.nan, math.nan, math.nan, math.nan, margin, stats.Verdict.INCONCLUSIVE)
    worse = [share for _, _, share in known]
    low, high = stats.one_sided_bounds(worse, _confidence())
    return Check(
        name, _mean(before for before, _, _ in known), _mean(after for _, after, _ in known), _mean(worse), low, high,
        margin, stats.non_inferior(worse, margin, _confidence()),
    )  # fmt: skip


def _confidence() -> float:
    """Of each one-sided bound, so that looking after 3 and after 6 seeds keeps 95% over both (Pocock)."""
    return 1 - stats.pocock_level(0.10, 2) / 2


def _worst(verdicts: Iterable[stats.Verdict]) -> stats.Verdict:
    found = set(verdicts)
    for verdict in (stats.Verdict.FAIL, stats.Verdict.INCONCLUSIVE):
        if verdict in found:
            return verdict
    return stats.Verdict.PASS


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
