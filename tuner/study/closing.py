"""Builds the result of a study from what its parts found."""

from __future__ import annotations

from tuner.analysis.accuracy import Screened
from tuner.analysis.bottleneck import Bottleneck
from tuner.analysis.contention import MOVED
from tuner.analysis.tiers import best_of_tiers
from tuner.model import Winner
from tuner.result import StudyFacts, StudyLimits, StudyResult
from tuner.study.context import Bench
from tuner.study.plan import StudyPlan


def facts_of(plan: StudyPlan) -> StudyFacts:
    """What reports and exporters say of the plan."""
    limits = StudyLimits(
        max_host_bytes=plan.limits.max_host_bytes, max_device_bytes=plan.limits.max_device_bytes,
        trial_timeout_s=plan.limits.trial_timeout_s, effective_batch=plan.effective_batch,
        max_loss_increase=plan.accuracy.max_loss_increase, max_metric_drop=dict(plan.accuracy.max_metric_drop),
        max_metric_rise=dict(plan.accuracy.max_metric_rise),
    )  # fmt: skip
    return StudyFacts(plan.name, str(plan.folder), plan.script, plan.device, limits, dict(plan.software))


def result_of(
    bench: Bench,
    *,
    winner: Winner | None,
    screened: tuple[Screened, ...],
    bottleneck: Bottleneck | None,
    why: str,
    interrupted: bool,
) -> StudyResult:
    """The result with what follows from the trials. ``why`` says what ended the search."""
    best, track, space = bench.best(), bench.track, bench.space
    tiers = {knob.name: knob.tier for knob in space.space.knobs} if space is not None else {}
    return StudyResult(
        study=facts_of(bench.plan), trials=tuple(bench.trials), winner=winner, best=best,
        best_gain=track.gain(best), why=why, seconds=bench.budget.elapsed(bench.clock()), interrupted=interrupted,
        screened=screened, shifts=tuple(track.shifts(MOVED)), bottleneck=bottleneck,
        space=space.space.name if space is not None else "",
        left_out=dict(space.left_out) if space is not None else {}, tiers=tiers,
        bests=best_of_tiers(bench.trials, track, tiers, winner, screened), knowledge=bench.knowledge,
    )  # fmt: skip
