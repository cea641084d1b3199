"""Screens: whether a config learns as well as the script as written, on paired seeds and equal samples. Pure.

Each figure (the training loss, metrics of the script's own) is held to a declared margin by one-sided 95% bounds on its
mean relative worsening: non-inferiority, so that "no significant difference" never passes. A batch in parts must also
give the gradient of the whole one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.analysis import stats
from tuner.analysis.stats import Noninferiority
from tuner.model import Config, FirstGradient, Outcome

SEEDS = 3
"""Seeds of a screen, and at most where those are inconclusive."""
MOST_SEEDS = 6
LOSS = "training loss"
FIRST_STEPS = 5
MOST_SKIPPED = 0.05
"""Share of steps that a gradient scaler may skip, beyond what it skips as written, once it has found its scale."""
GRADIENT = "gradient norm of the first step"
# Small MLPs, convolutions, LSTMs and transformers, a batch of 64 in 1 against 2, 8 and 64 parts: at most 6e-6 apart
# in float32, 2.3e-3 with one side or both in bfloat16. A mean over tokens of sequences of uneven length: 4e-3 (median).
GRADIENT_TOLERANCE = 5e-4
COARSE_GRADIENT_TOLERANCE = 1e-2
_SPLITTING = frozenset({"batch_size", "grad_accumulation"})
_SAME_SUM = 1e-6
_NAMES_SHOWN = 8


@dataclass(frozen=True)
class AccuracyLimits:
    """Margins, as fractions of the baseline's value: 0.01 is one percent.

    ``max_loss_increase`` is a fraction of the loss, or of the way that it has come down where that is more; None leaves
    the loss alone. ``max_metric_drop`` bounds metrics that are better when higher, ``max_metric_rise`` those that are
    better when lower; ``patterns`` gives the regular expression that finds a metric in what the script prints.
    ``samples`` is what each run of a screen trains on, None for as many as the baseline takes in a few seconds.
    """

    max_loss_increase: float | None = 0.01
    max_metric_drop: Mapping[str, float] = field(default_factory=dict)
    max_metric_rise: Mapping[str, float] = field(default_factory=dict)
    patterns: Mapping[str, str] = field(default_factory=dict)
    samples: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is anything to hold a config to."""
        return self.max_loss_increase is not None or bool(self.metrics)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that are bounded."""
        return (*self.max_metric_drop, *self.max_metric_rise)

    def unseen(self, metrics: Iterable[str]) -> str:
        """Which bounded metrics aren't among these, for people; "" where all are."""
        there = sorted(set(metrics))
        lacking = [name for name in self.metrics if name not in there]
        if not lacking:
            return ""
        unmatched = [name for name in lacking if name in self.patterns]
        if unmatched:
            return f"nothing that the script printed matches the pattern of {', '.join(unmatched)}"
        shown = ", ".join(there[:_NAMES_SHOWN]) or "none at all"
        more = f" and {len(there) - _NAMES_SHOWN} more" if len(there) > _NAMES_SHOWN else ""
        return f"{', '.join(lacking)}: the script gave no such metric; it gave {shown}{more}"


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
    """One figure held to its margin, as fractions; ``baseline`` and ``candidate`` are means over the seeds.

    ``worse`` is the mean relative worsening, with its one-sided 95% bounds ``low`` and ``high``. ``start`` is where the
    baseline's loss began, since its worsening may be relative to the way from there. ``either_way`` marks a figure that
    must be the same: its ``worse`` is the largest relative difference, without bounds. NaN where nothing is known.
    """

    name: str
    baseline: float
    candidate: float
    worse: float
    low: float
    high: float
    margin: float
    verdict: Noninferiority
    start: float | None = None
    either_way: bool = False


@dataclass(frozen=True)
class Screened:
    """What a screen showed of a config, from so many ``seeds``. ``reason`` says what the checks don't, for people.

    Each run trained on ``samples`` of ``unit``: samples, or steps where the script's samples can't be counted.
    """

    config: Config
    verdict: Noninferiority
    checks: tuple[Check, ...]
    seeds: int
    samples: int
    reason: str = ""
    unit: str = "samples"


def judge(config: Config, pairs: Sequence[Pair], limits: AccuracyLimits, samples: int) -> Screened:
    """The verdict of a screen: the worst of its figures'. ``samples`` is what each run trained on.

    A run that failed, a figure that isn't finite, another gradient from the same data, and too many skipped steps fail.
    """
    unit = next((p.baseline.measurement.unit for p in pairs if p.baseline.measurement is not None), "samples")
    failed = _failed_run(pairs)
    if failed is not None:
        return Screened(config, failed[0], (), len(pairs), samples, failed[1])
    gradient, reason = _gradient_check(config, pairs)
    if gradient is not None and gradient.verdict is Noninferiority.FAIL:
        why = "the gradient of a batch in parts isn't that of the whole"
        return Screened(config, Noninferiority.FAIL, (gradient,), len(pairs), samples, why, unit)
    checks = [*_figure_checks(pairs, limits), *([gradient] if gradient is not None else [])]
    verdict = _worst(check.verdict for check in checks)
    skipping = _skipping(pairs)
    if skipping:
        verdict = Noninferiority.FAIL
    unseen = limits.unseen(set.intersection(*({*p.baseline_metrics} & {*p.candidate_metrics} for p in pairs)))
    reasons = "; ".join(text for text in (skipping, unseen, reason) if text)
    return Screened(config, verdict, tuple(checks), len(pairs), samples, reasons, unit)


def is_settled(config: Config, pairs: Sequence[Pair]) -> bool:
    """Whether more seeds can't change the verdict, nor are needed for it."""
    if _failed_run(pairs) is not None:
        return True
    gradient, _ = _gradient_check(config, pairs)
    return gradient is not None and gradient.verdict is Noninferiority.FAIL


def _failed_run(pairs: Sequence[Pair]) -> tuple[Noninferiority, str] | None:
    """The verdict that a run without a figure leaves, and why."""
    for pair in pairs:
        if not pair.candidate.complete:
            reason = pair.candidate.detail or f"{pair.candidate.kind}: {pair.candidate.reason}"
            return Noninferiority.FAIL, f"seed {pair.seed}: {reason}"
        if not pair.baseline.complete:
            reason = f"seed {pair.seed}: the script as written gave no figure: {pair.baseline.detail}"
            return Noninferiority.INCONCLUSIVE, reason
    return None


def _figure_checks(pairs: Sequence[Pair], limits: AccuracyLimits) -> list[Check]:
    """The training loss and the metrics, each held to its margin."""
    checks = []
    if limits.max_loss_increase is not None:
        losses = [(_late_loss(p.baseline), _late_loss(p.candidate)) for p in pairs]
        scales = [_loss_scale(p.baseline) for p in pairs]
        check = _check(LOSS, losses, scales, limits.max_loss_increase, higher_is_better=False)
        firsts = [first for p in pairs if (first := _first_loss(p.baseline)) is not None]
        checks.append(replace(check, start=_mean(firsts) if firsts else None))
    for bounds, higher_is_better in ((limits.max_metric_drop, True), (limits.max_metric_rise, False)):
        for name, margin in bounds.items():
            values = [(p.baseline_metrics.get(name), p.candidate_metrics.get(name)) for p in pairs]
            # Of a baseline of 0 there is no share; there the difference itself is held to the margin.
            scales = [abs(before or 0.0) or 1.0 for before, _ in values]
            checks.append(_check(name, values, scales, margin, higher_is_better=higher_is_better))
    return checks


def _gradient_check(config: Config, pairs: Sequence[Pair]) -> tuple[Check | None, str]:
    """Where a batch is split: the norms of the first whole step's gradient, or why they can't be compared.

    They must be the same on the same data, whatever of a training is chance: no seeds are averaged over.
    """
    if not _SPLITTING & set(config):
        return None, ""
    norms: list[tuple[float, float, float, float]] = []
    for pair in pairs:
        before, after = _first_gradient(pair.baseline), _first_gradient(pair.candidate)
        if before is None or after is None or before.samples != after.samples:
            return None, ""  # no loader, or another effective batch: there is nothing to be the same
        obstacle = _incomparable(before, after)
        tolerance = GRADIENT_TOLERANCE if before.exact and after.exact else COARSE_GRADIENT_TOLERANCE
        apart = abs(after.norm - before.norm) / before.norm if before.norm > 0 else math.nan
        if obstacle and not apart <= tolerance:
            shown = f"{after.norm:.4g} against {before.norm:.4g}"
            return None, f"{GRADIENT} {shown} can't be compared, since {obstacle}: only the other figures can tell"
        norms.append((before.norm, after.norm, apart, tolerance))
    before_norms, after_norms, differences, tolerances = zip(*norms, strict=True)
    largest = max(differences)
    verdict = Noninferiority.PASS if largest <= min(tolerances) else Noninferiority.FAIL
    return Check(
        GRADIENT, _mean(before_norms), _mean(after_norms), largest, largest, largest, min(tolerances), verdict,
        either_way=True,
    ), ""  # fmt: skip


def _first_gradient(outcome: Outcome) -> FirstGradient | None:
    return outcome.measurement.gradient if outcome.measurement is not None else None


def _incomparable(before: FirstGradient, after: FirstGradient) -> str:
    """Why two first gradients may differ where nothing is wrong; "" where they may not."""
    if not (math.isfinite(before.norm) and math.isfinite(after.norm) and before.norm > 0):
        return "it is not a finite number above 0"
    if before.random or after.random:
        return "the training step draws random numbers, as dropout does"
    for (elements, total), (as_many, again) in zip(before.inputs, after.inputs, strict=False):
        # Batches that are padded to their longest item have other sums in parts, and the same data.
        if elements == as_many and not math.isclose(total, again, rel_tol=_SAME_SUM, abs_tol=_SAME_SUM * elements):
            return "its data were not the same, as with random augmentation"
    return ""


def _skipping(pairs: Sequence[Pair]) -> str:
    """That a gradient scaler skips more of the steps than it may, for people; "" where it doesn't."""
    before, after = (
        (sum(m.skipped_steps for m in side), sum(m.scaled_steps for m in side))
        for side in (
            [p.baseline.measurement for p in pairs if p.baseline.measurement is not None],
            [p.candidate.measurement for p in pairs if p.candidate.measurement is not None],
        )
    )
    as_written = before[0] / before[1] if before[1] else 0.0
    share = after[0] / after[1] if after[1] else 0.0
    if share - as_written <= MOST_SKIPPED:
        return ""
    beyond = f", as written {as_written:.0%}" if before[1] else ""
    return (
        f"the gradient scaler skipped {after[0]} of {after[1]} steps after its first ones ({share:.0%}{beyond};"
        f" {MOST_SKIPPED:.0%} more is allowed): gradients overflow"
    )


def metrics_in(text: str, patterns: Mapping[str, str]) -> dict[str, float]:
    """Metric → its last value in what a script printed; ``patterns`` are regular expressions, a group is the value."""
    values: dict[str, float] = {}
    for name, pattern in patterns.items():
        for match in re.finditer(pattern, text):
            try:
                values[name] = float(match[1] if match.re.groups else match[0])
            except (TypeError, ValueError):
                continue  # the pattern matches other text as well
    return values


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
    pairs = [
        (before, after, sign * (after - before) / scale)
        for (before, after), scale in zip(values, scales, strict=True)
        if before is not None and after is not None and math.isfinite(before)
    ]
    if len(pairs) < len(values) or not pairs:
        return Check(name, math.nan, math.nan, math.nan, math.nan, math.nan, margin, Noninferiority.INCONCLUSIVE)
    if not all(math.isfinite(after) for _, after, _ in pairs):
        before, after = _mean(before for before, _, _ in pairs), _mean(after for _, after, _ in pairs)
        return Check(name, before, after, math.inf, math.inf, math.inf, margin, Noninferiority.FAIL)
    worse = [share for _, _, share in pairs]
    low, high = stats.one_sided_bounds(worse, _confidence())
    return Check(
        name, _mean(before for before, _, _ in pairs), _mean(after for _, after, _ in pairs), _mean(worse), low, high,
        margin, stats.non_inferior(worse, margin, _confidence()),
    )  # fmt: skip


def _confidence() -> float:
    """Of each one-sided bound, so that looking after 3 and after 6 seeds keeps 95% over both (Pocock)."""
    return 1 - stats.pocock_level(0.10, 2) / 2


def _worst(verdicts: Iterable[Noninferiority]) -> Noninferiority:
    seen = set(verdicts)
    for verdict in (Noninferiority.FAIL, Noninferiority.INCONCLUSIVE):
        if verdict in seen:
            return verdict
    return Noninferiority.PASS


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
