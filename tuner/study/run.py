"""The order of a study's phases. Emits events and knows nothing of terminals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tuner.events import Listener, Noted, StudyFinished, StudyStarted, TrialFinished
from tuner.knowledge import first_knowledge
from tuner.model import Phase, Trial, Verdict, Winner, baseline_of
from tuner.result import LackOfTime, LargerBatch, StudyResult
from tuner.runner.request import Interrupted, Runner
from tuner.search.history import Sampler
from tuner.space.arguments import bound_knobs, parse
from tuner.storage.compile_cache import is_own
from tuner.storage.database import Repository, StudyRecord, holds_results
from tuner.storage.folder import COMPILE_CACHE
from tuner.storage.lock import both_locks
from tuner.study.baseline import measure_baseline
from tuner.study.budget import FEWEST_ROUNDS, Budget
from tuner.study.candidates import screen_candidates
from tuner.study.closing import result_of
from tuner.study.context import StudyContext
from tuner.study.execution import TrialExecutor
from tuner.study.finals import run_finals, verdict_so_far
from tuner.study.identity import check_identity, check_modules, identity_of, keeping_batch_by
from tuner.study.larger_batches import larger_so_far, prove_larger, set_aside
from tuner.study.plan import StudyPlan
from tuner.study.probe import probe_study
from tuner.study.rotation import rotate
from tuner.study.schedules import Contest, failed_altogether
from tuner.study.screens import bar_what_stays_open
from tuner.study.search import search
from tuner.study.search_space import resolve_space
from tuner.study.trials import TrialStore
from tuner.study.unproven import budget_to_try, lack_of_time


def run_study(
    plan: StudyPlan,
    runner: Runner,
    sampler: Sampler,
    listener: Listener,
    stop: threading.Event,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> StudyResult:
    """Runs a study to its end or resumes it; when ``stop`` is set, ends it with what there is.

    The budget is held against ``clock``, in seconds.

    Raises ``StudyMismatchError`` where the folder holds another study or the script is edited meanwhile,
    ``DeviceBusyError`` and ``StorageError`` where another process is at it, ``UserScriptError`` and ``UntunableError``
    where the baseline shows that nothing can be tuned, and what ``TrialExecutor.execute`` raises.
    """
    with opened(plan, runner, listener, stop, clock=clock) as study:
        return _run_phases(study, sampler)


@contextmanager
def opened(
    plan: StudyPlan,
    runner: Runner,
    listener: Listener,
    stop: threading.Event,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[StudyContext]:
    """The study in the plan's folder, new or resumed, with its locks held. Raises as ``run_study`` before a trial."""
    with both_locks(plan.folder, plan.device):
        repository = Repository(plan.url)
        try:
            record, is_new = _open(plan, repository)
            store = TrialStore(plan, repository, record.id)
            store.recover()
            executor = TrialExecutor(plan, runner, stop=stop, note=lambda text: listener(Noted(text)))
            executor.obstacle = executor.obstacle or _obstacle_so_far(store)
            placeholders = parse(plan.script.argv)
            study = StudyContext(
                plan, repository, record, store, executor,
                Budget(plan.trials, plan.budget_s, clock(), store.spent_s()), placeholders, listener, stop, clock,
                resumed=baseline_of(store.trials) is not None, knowledge=first_knowledge(bound_knobs(placeholders)),
            )  # fmt: skip
            study.tell(
                StudyStarted(
                    plan.name, str(plan.folder), plan.script, plan.device, plan.trials, plan.budget_s,
                    study.budget.finals_share, not is_new, _earlier(study),
                )
            )  # fmt: skip
            if store.may_fit_now:
                numbers = ", ".join(map(str, store.may_fit_now))
                study.note(
                    f"the limit of memory is higher than when these trials exceeded it: {numbers}; what they ran may be"
                    " tried again"
                )
            if not is_own(plan.folder / COMPILE_CACHE):
                study.note("the folder's compile cache was made elsewhere or by others: compiled anew, it isn't run")
            yield study
        finally:
            runner.close()
            repository.close()


def _obstacle_so_far(store: TrialStore) -> str:
    """Why the last trials of an earlier process took no turns, or ""."""
    searched = [trial.measurement for trial in store.trials if trial.phase is Phase.SEARCH and trial.measurement]
    last = searched[-2:]
    alone = len(last) == 2 and all(measurement.reference is None for measurement in last)
    return "its trials took none before, for a reason that was given then" if alone else ""


def _run_phases(study: StudyContext, sampler: Sampler) -> StudyResult:
    """Each phase carries on where an earlier process left it."""
    winner: Winner | None = None
    larger: LargerBatch | None = None
    lacked: LackOfTime | None = None
    untried_s: float | None = None
    judged = interrupted = False
    try:
        measure_baseline(study)
        if study.resumed and study.plan.source is not None:
            check_modules(study.knowledge.module_hashes, study.plan.source, str(study.plan.folder))
        resolve_space(study)
        probe_study(study)
        rotate(study)
        why, candidates, winner = _search_and_prove(study, sampler)
        if study.set_aside_s and (winner is None or winner.verdict is not Verdict.IMPROVED):
            larger = prove_larger(study, winner)
            if _has_time_by_now(study):
                candidates, winner = _prove_kept(study, screen_candidates(study))
        judged = True
        again = prove_larger(study, winner)
        if again is not None or (larger is not None and larger.proven):  # what failed in its finals is none now
            larger = again
        lacked, untried_s = lack_of_time(study, candidates, winner), budget_to_try(study)
        study.repository.save_state(study.record.id, "finished")
    except Interrupted:
        why, interrupted = "stopped on request", True
        winner = winner if judged else verdict_so_far(study)
        larger = larger_so_far(study, winner)
    result = result_of(
        study, winner=winner, larger=larger, lacked=lacked, why=why, interrupted=interrupted, untried_budget_s=untried_s
    )
    study.tell(StudyFinished(winner, result.best, len(result.trials), result.seconds, why, interrupted))
    return result


def _search_and_prove(study: StudyContext, sampler: Sampler) -> tuple[str, tuple[Trial, ...], Winner | None]:
    """Why the search ended, the candidates that keep the effective batch, best first, and what the finals say of them.

    Where what led the search is rejected by its screen, the search goes on without it in the time that is left, before
    anything else is proven; and where all that was found is rejected, or not shown to learn as well however long it is
    looked at.
    """
    why = search(study, sampler)
    while True:
        if set_aside(study):
            prove_larger(study, None)
        led, before = study.leading, (study.rejected, study.unshown, study.untold)
        candidates = screen_candidates(study)
        all_gone = all(study.gone(trial.config) for trial in candidates)
        time = study.time
        may_be_proven = time.fits(time.runs.trial_s() + time.unfound_proof_s())
        if led is not None and study.gone(led.config) and not all_gone and may_be_proven:
            more = _searched_on(study, sampler, "what led the search is rejected: the search goes on without it")
            if more:
                why = more
                continue
        candidates, winner = _prove_kept(study, candidates)
        bar_what_stays_open(study)
        is_news = (study.rejected, study.unshown, study.untold) != before
        all_gone = is_news and all(study.gone(trial.config) for trial in candidates)
        if winner is not None or not all_gone:
            return why, candidates, winner
        is_open = study.unshown or study.untold
        found = "nothing that was found is shown to learn as well" if is_open else "all that was found is rejected"
        more = _searched_on(study, sampler, f"{found}: the search looks for what is faster without it")
        if not more:
            return why, candidates, winner
        why = more


def _has_time_by_now(study: StudyContext) -> bool:
    """Whether there is time to prove what leads of those that keep the effective batch, and wasn't before."""
    best, time = study.leading, study.time
    if best is None or not best.config or study.gone(best.config) or time.rounds_done(best.config) >= FEWEST_ROUNDS:
        return False
    return time.fits(time.proof_s(best.config))


def _searched_on(study: StudyContext, sampler: Sampler, note: str) -> str:
    """Why the search ended that went on, as it notes; "" where there was no time for that, or it tried nothing."""
    if study.time.search_is_over():
        return ""
    done, study.set_aside_s = len(study.searched), 0.0
    study.note(note)
    why = search(study, sampler)
    return why if len(study.searched) > done else ""


def _prove_kept(study: StudyContext, candidates: tuple[Trial, ...]) -> tuple[tuple[Trial, ...], Winner | None]:
    """The candidates of those that keep the effective batch, best first, and what the finals say of them.

    Where all that met the script as written failed there, the next ones have the time that is left.
    """
    failed = failed_altogether(study, Contest.KEEPING)
    while True:
        winner, before = run_finals(study), failed
        failed = failed_altogether(study, Contest.KEEPING)
        if winner is not None or failed in ((), before):
            return candidates, winner
        candidates = screen_candidates(study)


def _open(plan: StudyPlan, repository: Repository) -> tuple[StudyRecord, bool]:
    """The record of the study, and whether it is a new one. Raises ``StudyMismatchError``.

    One that holds no results yet is taken for whatever is studied now: a script that failed as written was mended.
    """
    present = identity_of(plan)
    # A folder holds one study: its trials' folders are numbered.
    records = repository.studies()
    if not records:
        return repository.create_study(plan.name, present), True
    record = records[0]
    if not holds_results(repository.records(record.id)):
        repository.save_identity(record.id, present)
        return replace(record, identity=present), False
    check_identity(record.identity, present, str(plan.folder), baseline_of(repository.trials(record.id)))
    return record, False


def _earlier(study: StudyContext) -> tuple[TrialFinished, ...]:
    """The trials of an earlier process, each with the best of its time, of those that keep the effective batch.

    Which these are says the study's record: its space isn't resolved yet.
    """
    track, kept = study.track, keeping_batch_by(study.record.space, study.searched)
    events = []
    for trial in study.trials:
        best = track.best_of(one for one in kept if one.number <= trial.number)
        events.append(TrialFinished(trial, track.gain(trial), best, track.gain(best)))
    return tuple(events)
