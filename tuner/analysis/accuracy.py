"""Screens: whether a config learns as well as the script as written, on paired seeds and equal samples. Pure.

A training loss is held to a share of how far it came down as written, as in non-inferiority trials that preserve a
share of the control's effect (Holmgren, J. Biopharm. Stat. 9, 1999), by one-sided 95% bounds on the mean worsening, so
that "no significant difference" never passes. Where the script as written hasn't come down beyond its noise a screen
can't tell (it lacks assay sensitivity: ICH E10, 2000), and says what could. So it is where only some of a script's
losses come down: in a GAN or in reinforcement learning lower isn't better. There a config passes that keeps to the
course of the script as written, step by step. Besides, a config must learn from each sample nearly what the script as
written does, move its weights, and give for a batch in parts the whole one's gradient.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.analysis.checks import Check, CheckKind, Pair, held_to, worst
from tuner.analysis.course import course_checks, is_kept
from tuner.analysis.first_gradient import gradient_check
from tuner.analysis.first_loss import of_batch
from tuner.analysis.learning import Descent, descent_of
from tuner.analysis.loss_checks import deciding_metric, longer_screen, loss_checks, remedy, why_untold
from tuner.analysis.movement import movement_check
from tuner.analysis.resources import CROWDED_OUT
from tuner.analysis.stats import Noninferiority
from tuner.model import Config, Outcome, OutcomeKind, Ratio

SEEDS = 3
"""Seeds of a screen, and at most where those are inconclusive."""
MOST_SEEDS = 6
MOST_SKIPPED = 0.05
"""Share of steps that a gradient scaler may skip, beyond what it skips as written, once it has found its scale."""
METRIC_MOVED = 5.0
"""A metric tells by itself where it became better by so many margins as written."""
_NAMES_SHOWN = 8
_TOO_SHORT, _MUCH_LONGER = "too-short", 10
"""The reason of a run that was over after too few steps, and by what factor a screen of more would be longer."""


@dataclass(frozen=True)
class AccuracyLimits:
    """Margins, as fractions: 0.01 is one percent.

    ``max_loss_increase`` is a share of the way that the training loss comes down as written; None leaves losses alone.
    ``min_sample_efficiency`` bounds what a config learns from each sample, as a share of what the script as written
    does; None leaves that alone, and so do losses that are left alone unless it holds by itself: ``efficiency_alone``.
    ``same_steps``: whether a config takes the steps of the script as written; a larger effective batch takes others.
    ``max_metric_drop`` bounds metrics that are better when higher, ``max_metric_rise``
    those that are better when lower, as shares of their value; ``patterns`` gives the regular expression that finds a
    metric in what the script prints. ``samples`` is what each run of a screen trains on, None for as many as the
    baseline takes in a few seconds, and more where that tells nothing.
    """

    max_loss_increase: float | None = 0.01
    max_metric_drop: Mapping[str, float] = field(default_factory=dict)
    max_metric_rise: Mapping[str, float] = field(default_factory=dict)
    patterns: Mapping[str, str] = field(default_factory=dict)
    samples: int | None = None
    min_sample_efficiency: float | None = 0.9
    efficiency_alone: bool = False
    same_steps: bool = True

    @property
    def any(self) -> bool:
        """Whether there is anything to hold a config to."""
        return self.compares_losses or bool(self.metrics)

    @property
    def compares_losses(self) -> bool:
        """Whether training losses decide anything."""
        return self.max_loss_increase is not None or self.least_efficiency is not None

    @property
    def lets_course_decide(self) -> bool:
        """Whether what keeps the course of the script as written passes."""
        return self.compares_losses and self.same_steps

    @property
    def least_efficiency(self) -> float | None:
        """``min_sample_efficiency`` where it holds, else None."""
        holds = self.max_loss_increase is not None or self.efficiency_alone
        return self.min_sample_efficiency if holds else None

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
class Screened:
    """What a screen showed of a config, from so many ``seeds``. ``reason`` says what the checks don't, for people.

    Each run trained on ``samples`` of ``unit``: samples, or steps where the script's samples can't be counted. No seeds
    are those of a screen that the script as written alone showed to be of no use. ``would_decide`` says for people what
    else would tell, where the verdict is inconclusive. ``efficiency`` is the share of the samples as from which the
    config learns, with its 95% interval; None where that can't be read. ``by_time``: it was held to reaching a loss
    sooner, by the speed of its trial, and not to learning as well from each sample. ``lacked_time``: what would have
    followed, more seeds or a longer screen, had no time; the verdict is inconclusive for that.
    """

    config: Config
    verdict: Noninferiority
    checks: tuple[Check, ...]
    seeds: int
    samples: int
    reason: str = ""
    unit: str = "samples"
    would_decide: str = ""
    efficiency: Ratio | None = None
    by_time: bool = False
    lacked_time: bool = False


def judge(config: Config, pairs: Sequence[Pair], limits: AccuracyLimits, samples: int) -> Screened:
    """The verdict of a screen: the worst of its figures'. ``samples`` is what each run trained on.

    A run that failed where the script as written didn't, a figure that isn't finite, another gradient from the same
    data, weights that stand still, and too many skipped steps fail. Where the losses can't tell, a bounded metric
    decides that became better as written, or that the training keeps to the course of the script as written. They can't
    where they depend on the size of the batch, and that is another one.
    A figure that is beyond its margin by its interval alone fails where it surely is, or with all seeds: what three say
    that had bad luck bars all configs with these knobs.
    """
    unit = _unit(pair.baseline for pair in pairs)
    failed = _failed_run(pairs)
    if failed is not None:
        is_short = any(_TOO_SHORT in (pair.baseline.reason, pair.candidate.reason) for pair in pairs)
        longer = longer_screen(_MUCH_LONGER * samples) if is_short else ""
        return Screened(config, failed[0], (), len(pairs), samples, failed[1], unit, longer)
    gradient, incomparable = gradient_check(config, pairs)
    if gradient is not None and gradient.verdict is Noninferiority.FAIL:
        why = incomparable or "the gradient of a batch in parts isn't that of the whole"
        return Screened(config, Noninferiority.FAIL, (gradient,), len(pairs), samples, why, unit)
    baselines = [pair.baseline for pair in pairs]
    unlike = of_batch(pairs)
    descent = Descent.LEVEL if unlike else descent_of(baselines)
    losses, efficiency = loss_checks(pairs, limits.max_loss_increase, limits.least_efficiency, descent)
    course = course_checks(pairs) if limits.lets_course_decide else ()
    is_same = is_kept(course)
    metrics, unmoved = _metric_checks(pairs, limits, tells=is_same or _losses_tell(descent, limits))
    movement, unread = movement_check(pairs)
    further = [check for check in (movement, gradient) if check is not None]
    is_open = any(check.verdict is Noninferiority.INCONCLUSIVE for check in losses)
    checks = [*losses, *(course if is_open else ()), *metrics, *further]
    skipping = _skipping(pairs)
    # A metric that tells stands in for losses that don't, as does the course; those can still fail by not being finite.
    stands_in = is_same or (descent is not Descent.DOWN and bool(limits.metrics))
    verdict = worst(check.verdict for check in (*(() if stands_in else losses), *metrics, *further))
    failing = [check for check in checks if check.verdict is Noninferiority.FAIL]
    if skipping or any(check.is_sure for check in failing) or (failing and len(pairs) >= MOST_SEEDS):
        verdict = Noninferiority.FAIL
    elif failing:
        verdict = Noninferiority.INCONCLUSIVE
    reasons = [skipping, limits.unseen(_metrics_of_all(pairs)), incomparable, unread]
    would_decide = ""
    if verdict is Noninferiority.INCONCLUSIVE and not unread:
        reasons += [unmoved, (unlike or why_untold(baselines, descent)) if losses else ""]
        would_decide = _remedy(baselines, descent, limits, samples, unlike=bool(unlike))
    return Screened(
        config, verdict, tuple(checks), len(pairs), samples, "; ".join(text for text in reasons if text), unit,
        would_decide, efficiency,
    )  # fmt: skip


def untold(config: Config, pairs: Sequence[Pair], limits: AccuracyLimits, samples: int) -> Screened | None:
    """The inconclusive verdict on any config that follows from how the script as written learned in these pairs alone.

    None where a figure may tell: losses that are compared come down or a bounded metric became better; and where a run
    failed.
    """
    baselines = [pair.baseline for pair in pairs]
    descent = descent_of(baselines)
    bounds = [(sign, name, margin) for sign, each in _signed(limits) for name, margin in each.items()]
    moved = any(_moved(pairs, name, margin, sign) for sign, name, margin in bounds)
    may_tell = moved or _losses_tell(descent, limits)
    if may_tell or not limits.any or not all(outcome.complete for outcome in baselines):
        return None
    unseen = limits.unseen(_metrics_of_all(pairs))
    why = why_untold(baselines, descent) or unseen or _why_unmoved(name for _, name, _ in bounds)
    would_decide = _remedy(baselines, descent, limits, samples, unlike=False)
    return Screened(config, Noninferiority.INCONCLUSIVE, (), 0, samples, why, _unit(baselines), would_decide)


def _remedy(
    baselines: Sequence[Outcome], descent: Descent, limits: AccuracyLimits, samples: int, *, unlike: bool
) -> str:
    """What would decide, for people. ``unlike``: losses of batches of another size aren't the same, however long they
    are looked at.
    """
    if unlike:
        return deciding_metric(baselines) if limits.same_steps else ""
    return remedy(baselines, descent, samples, by_metric=limits.same_steps)


def same_course(pairs: Sequence[Pair], limits: AccuracyLimits) -> bool:
    """Whether a course decides, and the training keeps to that of the script as written in all these pairs.

    Of the script as written beside itself: whether a config could show that at all.
    """
    return limits.lets_course_decide and is_kept(course_checks(pairs))


def is_settled(config: Config, pairs: Sequence[Pair]) -> bool:
    """Whether more seeds can't let the config pass, nor are needed for the verdict."""
    movement, unread = movement_check(pairs)
    if _failed_run(pairs) is not None or unread:
        return True
    checks = (gradient_check(config, pairs)[0], movement)
    return any(check is not None and check.verdict is Noninferiority.FAIL for check in checks)


def metrics_in(text: str, patterns: Mapping[str, str]) -> dict[str, tuple[float, ...]]:
    """Metric → its values in what a script printed; ``patterns`` are regular expressions, a group is the value."""
    values: dict[str, tuple[float, ...]] = {}
    for name, pattern in patterns.items():
        for match in re.finditer(pattern, text):
            try:
                values[name] = (*values.get(name, ()), float(match[1] if match.re.groups else match[0]))
            except (TypeError, ValueError):
                continue  # the pattern matches other text as well
    return values


def _failed_run(pairs: Sequence[Pair]) -> tuple[Noninferiority, str] | None:
    """The verdict that a run without a figure leaves, and why."""
    for pair in pairs:
        if pair.candidate.kind is OutcomeKind.TIMED_OUT and pair.baseline.kind is OutcomeKind.TIMED_OUT:
            return Noninferiority.INCONCLUSIVE, f"seed {pair.seed}: the script as written wasn't through in time either"
        if not pair.baseline.complete:
            either = "" if pair.candidate.complete else " either"
            reason = f"seed {pair.seed}: the script as written gave no figure{either}: {pair.baseline.detail}"
            return Noninferiority.INCONCLUSIVE, reason
        if not pair.candidate.complete:
            reason = pair.candidate.detail or f"{pair.candidate.kind}: {pair.candidate.reason}"
            is_open = pair.candidate.reason in (_TOO_SHORT, CROWDED_OUT)
            return Noninferiority.INCONCLUSIVE if is_open else Noninferiority.FAIL, f"seed {pair.seed}: {reason}"
    return None


def _losses_tell(descent: Descent, limits: AccuracyLimits) -> bool:
    return descent is Descent.DOWN and limits.compares_losses


def _metric_checks(pairs: Sequence[Pair], limits: AccuracyLimits, *, tells: bool) -> tuple[list[Check], str]:
    """The bounded metrics, and which of them tell nothing, for people: they didn't move as written, and nothing else
    ``tells``.
    """
    checks = []
    unmoved = []
    for sign, bounds in _signed(limits):
        for name, margin in bounds.items():
            values = [(p.baseline_metrics.get(name), p.candidate_metrics.get(name)) for p in pairs]
            worse = [sign * ((after or 0.0) - (before or 0.0)) / _scale(before) for before, after in values]
            check = held_to(CheckKind.METRIC, name, values, worse, margin)
            if not tells and not _moved(pairs, name, margin, sign) and check.verdict is Noninferiority.PASS:
                check = replace(check, verdict=Noninferiority.INCONCLUSIVE)
                unmoved.append(name)
            checks.append(check)
    return checks, _why_unmoved(unmoved) if unmoved else ""


def _why_unmoved(metrics: Iterable[str]) -> str:
    return f"{', '.join(metrics)} became no better as written, or was given once only: it can't tell"


def _signed(limits: AccuracyLimits) -> tuple[tuple[int, Mapping[str, float]], ...]:
    """The bounds of metrics, with what makes a worsening of each positive."""
    return (-1, limits.max_metric_drop), (1, limits.max_metric_rise)


def _scale(value: float | None) -> float:
    """What a metric's difference is a share of. Of 0 there is none: there the difference itself is held."""
    return abs(value or 0.0) or 1.0


def _moved(pairs: Sequence[Pair], name: str, margin: float, sign: int) -> bool:
    """Whether a metric became better by several margins as written, with every seed; within none by anything."""
    for pair in pairs:
        first, last = pair.first_metrics.get(name), pair.baseline_metrics.get(name)
        if first is None or last is None:
            return False
        better = sign * (first - last)
        if not (better > 0 and better >= METRIC_MOVED * margin * _scale(last)):
            return False
    return bool(pairs)


def _metrics_of_all(pairs: Sequence[Pair]) -> set[str]:
    return set.intersection(*({*p.baseline_metrics} & {*p.candidate_metrics} for p in pairs))


def _unit(baselines: Iterable[Outcome]) -> str:
    return next((o.measurement.unit for o in baselines if o.measurement is not None), "samples")


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
    beyond = f", as written {100 * as_written:.3g}%" if before[1] else ""
    return (
        f"the gradient scaler skipped {after[0]} of {after[1]} steps after its first ones ({100 * share:.3g}%{beyond};"
        f" {MOST_SKIPPED:.0%} more is allowed): gradients overflow"
    )
