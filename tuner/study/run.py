"""The loop: baseline, space, ask → run → store → judge, finals. Emits events and knows nothing of terminals."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tuner.analysis.accuracy import Screened
from tuner.analysis.bottleneck import Bottleneck
from tuner.analysis.comparison import choose_candidates
from tuner.analysis.contention import MOVED
from tuner.analysis.gain import WORTH_HAVING, score_of
from tuner.analysis.memory_forecast import MemoryLimits
from tuner.analysis.stats import Verdict
from tuner.devices.present import kind_of
from tuner.events import Listener, Noted, Probed, SpaceResolved, StudyFinished, StudyStarted
from tuner.formatting import AS_WRITTEN, config_text, shift_text
from tuner.knowledge import first_knowledge, widened, with_arguments
from tuner.model import BASELINE, Measurement, Phase, Trial, Winner
from tuner.result import StudyResult
from tuner.runner.request import Interrupted, Runner
from tuner.search.history import History, Proposal, Sampler
from tuner.space.arguments import bound_knobs, parse
from tuner.space.declare import Known, SearchSpace
from tuner.space.resolve import ResolvedSpace, resolve, selected_names
from tuner.storage.database import NewTrial, Repository, StudyRecord
from tuner.storage.folder import LOG, trial_folder
from tuner.storage.lock import DeviceLock, FolderLock
from tuner.study import identity
from tuner.study.baseline import refusal
from tuner.study.closing import result_of
from tuner.study.context import Bench
from tuner.study.execution import Ledger
from tuner.study.finals import hold_finals, verdict_so_far
from tuner.study.plan import StudyPlan
from tuner.study.probe import explore
from tuner.study.screens import note_unseen, screen

MANY_FAILURES = 8
"""So many trials in a row without a figure, and the search isn't getting anywhere."""
CANDIDATES = 3
"""So many candidates for each place in the finals are screened, if those before them fail."""


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

    Raises ``StudyMismatchError`` where the folder holds another study, ``DeviceBusyError`` and ``StorageError`` where
    another process is at it, ``UserScriptError`` and ``UntunableError`` where the baseline shows that nothing can be
    tuned, and what ``Ledger.conduct`` raises.
    """
    with FolderLock(plan.folder), DeviceLock(plan.device, str(plan.folder)):
        repository = Repository(plan.url)
        try:
            record, resumed = _open(plan, repository)
            ledger = Ledger(plan, repository, record.id, runner, stop=stop, note=lambda text: listener(Noted(text)))
            ledger.recover()
            bench = Bench(plan, repository, record.id, ledger, tell=listener, stop=stop, clock=clock)
            study = _Study(bench, record, sampler)
            return study.run(resumed=resumed)
        finally:
            repository.close()


def _open(plan: StudyPlan, repository: Repository) -> tuple[StudyRecord, bool]:
    present = identity.identity_of(plan)
    record = repository.load_study(plan.name)
    if record is None and not plan.storage_url:
        # A folder holds one study: its trials' folders are numbered.
        record = next(iter(repository.studies()), None)
    if record is None:
        return repository.create_study(plan.name, present), False
    identity.check_identity(record.identity, present, str(plan.folder))
    return record, True


class _Study:
    def __init__(self, bench: Bench, record: StudyRecord, sampler: Sampler) -> None:
        self._bench = bench
        self._plan = bench.plan
        self._record = record
        self._sampler = sampler
        self._placeholders = parse(self._plan.script.argv)
        self._bound = bound_knobs(self._placeholders)
        bench.knowledge = first_knowledge(self._bound)
        self._bottleneck: Bottleneck | None = None
        self._screened: tuple[Screened, ...] = ()
        self._fit: list[Trial] = []
        self._paused = False

    def run(self, *, resumed: bool) -> StudyResult:
        """Baseline, probe, search, screens, finals; each part carries on where an earlier process left it."""
        plan, bench = self._plan, self._bench
        bench.tell(
            StudyStarted(
                plan.name, str(plan.folder), plan.script, plan.device, plan.trials, plan.budget_s,
                bench.budget.finals_share, resumed, bench.told_earlier(),
            )
        )  # fmt: skip
        self._paused = bench.baseline() is not None
        winner: Winner | None = None
        interrupted = False
        try:
            self._measure_baseline()
            space = self._resolve_space()
            self._probe(space)
            space, why = self._search(space)
            winner = self._prove()
            bench.repository.save_state(self._record.id, "finished")
        except Interrupted:
            why, interrupted = "stopped on request", True
            winner = verdict_so_far(bench, self._fit)
        result = result_of(
            bench, winner=winner, screened=self._screened, bottleneck=self._bottleneck, why=why, interrupted=interrupted
        )
        bench.tell(StudyFinished(winner, result.best, len(result.trials), result.seconds, why, interrupted))
        return result

    def _measure_baseline(self) -> None:
        bench = self._bench
        baseline = bench.baseline()
        if baseline is None:
            waiting = bench.waiting()
            baseline = bench.conduct(waiting) if waiting else bench.run(NewTrial(Phase.BASELINE, BASELINE))
        assert baseline.outcome is not None
        if not baseline.outcome.complete:
            # What is wrong may be mended outside of the script, so it is run again next time.
            bench.ledger.forget(baseline)
            raise refusal(baseline.outcome, trial_folder(self._plan.folder, 0) / LOG)
        if not self._paused:
            note_unseen(bench, baseline)
            for remark in baseline.outcome.knowledge.remarks:
                bench.note(f"{AS_WRITTEN}: {remark}")
        knowledge = replace(
            baseline.outcome.knowledge, effective_batch=self._plan.effective_batch,
            free_host_bytes=self._free_host_bytes(baseline.outcome.measurement),
        )  # fmt: skip
        bench.knowledge = with_arguments(knowledge, self._bound)

    def _free_host_bytes(self, baseline: Measurement | None) -> int | None:
        """What the memory limit leaves beside the script as written."""
        limit = self._plan.limits.max_host_bytes
        return None if limit is None or baseline is None else max(0, limit - baseline.peak_host_bytes)

    def _resolve_space(self) -> ResolvedSpace:
        plan = self._plan
        asked = [*selected_names(plan.selection), *plan.pinned]
        space = plan.spaces.chosen(self._bench.knowledge, self._placeholders, asked)
        resolved = self._resolved(space)
        identity.check_space(self._record.space, resolved, str(plan.folder))
        # Only now is it sure that the study goes on: one that is refused stays as it was, finished or not.
        self._bench.repository.save_state(self._record.id, "running")
        self._bench.repository.save_space(self._record.id, identity.space_document(resolved))
        self._take(resolved)
        excluded = [
            f"{axis.knob.name}={value}"
            for axis in resolved.axes
            for value in axis.values
            if not resolved.allows(resolved.canonical({axis.knob.name: value}))
        ]
        if excluded:
            self._bench.note(f"not tried, since the effective batch is kept (--effective-batch): {', '.join(excluded)}")
        return resolved

    def _probe(self, space: ResolvedSpace) -> None:
        """Finds out what holds the script up, which tells the search where to look."""
        self._bottleneck = explore(self._bench) if space.axes or space.pinned else None
        if self._bottleneck is not None:
            self._bench.tell(Probed(self._bottleneck))

    def _resolved(self, space: SearchSpace) -> ResolvedSpace:
        plan = self._plan
        known = Known(plan.device, plan.cores, knowledge=self._bench.knowledge)
        return resolve(space, known, selection=plan.selection, pinned=plan.pinned)

    def _take(self, space: ResolvedSpace) -> None:
        self._bench.space = space
        self._bench.tell(
            SpaceResolved(
                {axis.knob.name: axis.values for axis in space.axes},
                {axis.knob.name: axis.values[axis.as_written] for axis in space.axes},
                dict(space.left_out), space.pinned, space.size,
            )
        )  # fmt: skip

    def _widened(self, space: ResolvedSpace) -> ResolvedSpace:
        """The space with what the trials so far have shown of other values of the script's arguments.

        It follows from the trials alone, so that a resumed study comes to the same one.
        """
        bench = self._bench
        knowledge = widened(bench.knowledge, self._bound, bench.trials)
        if knowledge is bench.knowledge:
            return space
        bench.knowledge = knowledge
        wider = self._resolved(space.space)
        new = [axis.knob.name for axis in wider.axes if axis.knob.name in space.left_out]
        if not new:
            return space
        bench.note(f"with {config_text(knowledge.beside[new[0]])} there is more to turn: {', '.join(new)}")
        self._take(wider)
        return wider

    def _search(self, space: ResolvedSpace) -> tuple[ResolvedSpace, str]:
        """Runs trials until a bound is reached; says which, and what the space had become by then."""
        bench = self._bench
        while True:
            space = self._widened(space)
            trial = bench.waiting()
            if trial is not None:
                bench.conduct(trial)
                continue
            over = self._search_is_over(space)
            if over:
                return space, over
            limits = MemoryLimits(self._plan.limits.max_device_bytes, self._plan.limits.max_host_bytes)
            history = History(space, self._plan.objective, bench.trials, limits)
            proposal = self._sampler.propose(history)
            if proposal is None:
                return space, "every config worth a trial has been tried"
            if self._anchor_is_due():
                bench.run(NewTrial(Phase.ANCHOR, BASELINE, "drift check"))
                self._note_drift()
                continue
            bench.run(NewTrial(Phase.SEARCH, proposal.config, _why(proposal, history, self._plan)))

    def _anchor_is_due(self) -> bool:
        """Whether the baseline was measured too long ago to hold the next trials against it, or by another process."""
        if self._paused:
            self._paused = False
            return True
        since = 0
        for trial in reversed(self._bench.trials):
            if trial.phase in (Phase.BASELINE, Phase.ANCHOR):
                break
            since += trial.phase is Phase.SEARCH
        return since >= self._plan.anchor_every

    def _note_drift(self) -> None:
        anchor = max(trial.number for trial in self._bench.trials if trial.phase is Phase.ANCHOR)
        for shift in self._bench.yardstick.shifts(MOVED):
            if shift.after == anchor:
                self._bench.note(shift_text(shift))

    def _search_is_over(self, space: ResolvedSpace) -> str:
        bench, plan = self._bench, self._plan
        done = bench.searched()
        if not space.axes and not space.pinned:
            return "there is nothing to search"
        by_budget = bench.budget.search_is_over(bench.clock(), len(done), bench.trial_s(), bench.reserved_s())
        if by_budget:
            return by_budget
        if space.pinned and len(done) == 2 and score_of(done[1].outcome, plan.objective) is None:
            outcome = done[1].outcome
            return f"what is pinned does not work here: {outcome.detail if outcome else ''}"
        failed = [t for t in done[-MANY_FAILURES:] if score_of(t.outcome, plan.objective) is None]
        if len(failed) == MANY_FAILURES:
            return f"the last {MANY_FAILURES} configs failed"
        if plan.patience is not None and self._trials_since_gain(done) >= plan.patience:
            return f"{plan.patience} trials in a row brought no gain"
        return ""

    def _trials_since_gain(self, done: list[Trial]) -> int:
        yardstick = self._bench.yardstick
        best, since = 0.0, 0
        for trial in done:
            own = yardstick.gain(trial) or 0.0
            improved = own > best * WORTH_HAVING
            best, since = (own, 0) if improved else (best, since + 1)
        return since

    def _prove(self) -> Winner | None:
        """Screens the best configs, and lets those that learn as well meet the baseline in the finals."""
        plan, bench = self._plan, self._bench
        candidates = choose_candidates(bench.trials, plan.objective, CANDIDATES * plan.finalists)
        self._screened = tuple(screen(bench, candidates))
        passed = [s.config for s in self._screened if s.verdict is Verdict.PASS]
        self._fit = [t for t in candidates if not bench.needs_screen(t.config) or t.config in passed]
        winner = hold_finals(bench, self._fit)
        if candidates:
            self._note_lack_of_time(candidates[0], winner)
        return winner

    def _note_lack_of_time(self, fastest: Trial, winner: Winner | None) -> None:
        """Names the budget that would do, where nothing but time was lacking to prove the fastest config."""
        bench = self._bench
        screened = [screened.config for screened in self._screened]
        lacked = winner is None if fastest in self._fit else fastest.config not in screened
        if bench.budget.seconds is None or not lacked:
            return
        # A study that goes on measures the script as written once more.
        wanted_s = bench.budget.elapsed(bench.clock()) + bench.trial_s() + bench.proof_s(fastest.config)
        bench.note(
            f"with --budget {math.ceil(wanted_s / 60) + 1}m the same command goes on, and has the time to prove"
            f" {config_text(fastest.config)}"
        )


def _why(proposal: Proposal, history: History, plan: StudyPlan) -> str:
    """What the trial is for, with the memory that it is expected to take: what came of that can be looked up."""
    expected = history.forecast(proposal.config)
    if expected is None:
        return proposal.why
    forecast = expected.device_bytes if kind_of(plan.device).own_memory else expected.host_bytes
    return f"{proposal.why}; forecast: {forecast / 2**20:,.0f} MiB"
