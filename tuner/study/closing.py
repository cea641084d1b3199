"""Builds the result of a study from what its parts found."""

from __future__ import annotations

from tuner.analysis.bottleneck import bottleneck_of
from tuner.analysis.comparison import failed_in
from tuner.analysis.contention import MOVED, contamination
from tuner.analysis.gain import runs_as_written
from tuner.analysis.tiers import best_of_tiers
from tuner.formatting import config_text
from tuner.model import Phase, Winner
from tuner.result import LackOfTime, LargerBatch, StudyFacts, StudyLimits, StudyResult
from tuner.storage.folder import FAULT
from tuner.study.context import StudyContext
from tuner.study.plan import StudyPlan


def facts_of(plan: StudyPlan) -> StudyFacts:
    """What reports and exporters say of the plan."""
    limits = StudyLimits(
        max_host_bytes=plan.limits.max_host_bytes, max_device_bytes=plan.limits.max_device_bytes,
        trial_timeout_s=plan.limits.trial_timeout_s, effective_batch=plan.effective_batch,
        max_loss_increase=plan.accuracy.max_loss_increase, min_sample_efficiency=plan.accuracy.least_efficiency,
        max_metric_drop=dict(plan.accuracy.max_metric_drop), max_metric_rise=dict(plan.accuracy.max_metric_rise),
        screen_samples=plan.accuracy.samples, metric_patterns=dict(plan.accuracy.patterns),
    )  # fmt: skip
    return StudyFacts(
        plan.name, str(plan.folder), plan.script, plan.device, limits, dict(plan.software), plan.cores,
        dict(plan.energy_unknown), plan.ranks,
    )  # fmt: skip


def result_of(
    study: StudyContext, *, winner: Winner | None, larger: LargerBatch | None, lacked: LackOfTime | None, why: str,
    interrupted: bool, untried_budget_s: float | None = None,
) -> StudyResult:  # fmt: skip
    """The result, with what follows from the trials. ``why`` says what ended the search."""
    best, track, space, host = study.best, study.track, study.space, study.plan.host
    tiers = study.tiers
    winners = [one for one in (winner, larger.winner if larger is not None else None) if one is not None]
    broke_it = sorted(frozenset(study.knowledge.without) - study.plan.without)
    return StudyResult(
        study=facts_of(study.plan), trials=tuple(study.trials), winner=winner, best=best,
        best_gain=track.gain(best), why=why, seconds=study.budget.elapsed(study.clock()), interrupted=interrupted,
        screened=study.screened, shifts=tuple(track.shifts(MOVED)),
        bottleneck=bottleneck_of(study.trials, study.plan.host) if study.bottleneck is not None else None,
        space=space.space.name if space is not None else "",
        left_out=dict(space.left_out) if space is not None else {}, tiers=tiers.of_knobs,
        bests=best_of_tiers(
            study.trials, track, tiers, winners, study.screened,
            larger=larger.config if larger is not None else None,
        ),
        knowledge=study.knowledge,
        broke_it=tuple(broke_it), fault=str(study.plan.folder / FAULT) if broke_it else "",
        disturbed=sum(
            trial.phase is Phase.SEARCH and trial.outcome is not None and bool(contamination(trial.outcome, host))
            for trial in study.trials
        ),
        baseline_disturbed=_baseline_disturbed(study),
        larger=larger, no_larger=_why_no_larger(study) if larger is None else "", objective=study.plan.objective,
        lacked_time=lacked, untried_budget_s=untried_budget_s,
    )  # fmt: skip


def _baseline_disturbed(study: StudyContext) -> str:
    """What disturbed the script as written in its last run before the best trial or in its first one after it, where
    that trial took no turns with it: its gain is by both. "" where nothing did.
    """
    best = study.best
    if best is None or not best.config or best.measurement is None or best.measurement.reference is not None:
        return ""
    runs = runs_as_written(study.trials)
    before, after = ([run for run in runs if (run.number < best.number) is is_before] for is_before in (True, False))
    outcomes = [run.outcome for run in (*before[-1:], *after[:1]) if run.outcome is not None]
    return next(filter(None, (contamination(outcome, study.plan.host) for outcome in outcomes)), "")


def _why_no_larger(study: StudyContext) -> str:
    """Why nothing is known of larger effective batches, for people; "" where the user didn't ask for any."""
    space = study.space
    if space is None or space.larger is None:
        return space.no_larger if space is not None else ""
    if not study.larger:
        return "the search ended before it tried one"
    failed = failed_in(study.trials, study.plan.objective)
    faster = study.track.best_of(trial for trial in study.larger if trial.config in failed)
    if faster is not None and (study.track.gain(faster) or 0.0) > 1.0:
        return f"{config_text(faster.config)} failed in its finals"
    if any(study.track.gain(trial) is not None for trial in study.larger):
        return "none was faster than the script as written"
    last = study.larger[-1]
    reason = (last.outcome.detail or last.outcome.reason) if last.outcome is not None else ""
    return f"none could be measured; {config_text(last.config)}: {reason}"
