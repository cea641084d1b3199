"""The loop: baseline, space, ask → run → store → judge, finals. Emits events and knows nothing of terminals."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tuner import identity
from tuner.budget import Budget
from tuner.errors import UntunableError, UserScriptError
from tuner.events import (
    FinalsStarted,
    Listener,
    Noted,
    PairFinished,
    SpaceResolved,
    StudyFinished,
    StudyStarted,
    TrialFinished,
    TrialStarted,
)
from tuner.finals import Schedule, choose_candidates, decide, failed_in, is_decided, pairs_of
from tuner.ledger import Ledger
from tuner.lock import DeviceLock, FolderLock
from tuner.model import Outcome, OutcomeKind, Phase, Trial, Winner
from tuner.noise import MOVED
from tuner.placeholders import extend_facts, extend_space, parse
from tuner.plan import StudyPlan
from tuner.runner.base import Interrupted, Runner
from tuner.scoring import WORTH_HAVING, Yardstick, key_of, score_of
from tuner.search.history import History, Sampler
from tuner.space import Known, ResolvedSpace, resolve
from tuner.storage import Repository, StudyRecord

FIRST_TRIAL_S = 30.0
"""A guess of what a trial takes, before any has been run."""
MORE_ROUNDS = 2
"""So many rounds are added to undecided finals at a time."""
MANY_FAILURES = 8
"""So many trials in a row without a figure, and the search isn't getting anywhere."""


@dataclass(frozen=True)
class StudyResult:
    """What a study found. ``winner`` is None where no finals were run; ``best`` is the best single trial then."""

    winner: Winner | None
    best: Trial | None
    best_gain: float | None
    trials: tuple[Trial, ...]
    why: str
    seconds: float
    interrupted: bool
    space: ResolvedSpace | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def run_study(
    plan: StudyPlan, runner: Runner, sampler: Sampler, listener: Listener, stop: threading.Event
) -> StudyResult:
    """Runs a study to its end or resumes it; when ``stop`` is set, ends it with what there is.

    Raises ``StudyMismatchError`` where the folder holds another study, ``DeviceBusyError`` and ``StorageError`` where
    another process is at it, ``UserScriptError`` and ``UntunableError`` where the baseline shows that nothing can be
    tuned, and what ``Ledger.conduct`` raises.
    """
    with FolderLock(plan.folder), DeviceLock(plan.device, str(plan.folder)):
        repository = Repository(plan.url)
        try:
            record, resumed = _open(plan, repository)
            ledger = Ledger(
                plan, repository, record.id, runner, stop=stop, note=lambda text: listener(Noted(text))
            )
            ledger.recover()
            study = _Study(
                plan=plan, repository=repository, record=record, ledger=ledger, sampler=sampler, listener=listener,
                stop=stop,
            )  # fmt: skip
            return study.run(resumed=resumed)
        finally:
            repository.close()


def _open(plan: StudyPlan, repository: Repository) -> tuple[StudyRecord, bool]:
    present = identity.identity_of(plan)
    record = repository.load_study(plan.name)
    if record is None:
        return repository.create_study(plan.name, present), False
    identity.check_identity(record.identity, present, str(plan.folder))
    return record, True


class _Study:
    def __init__(
        self,
        *,
        plan: StudyPlan,
        repository: Repository,
        record: StudyRecord,
        ledger: Ledger,
        sampler: Sampler,
        listener: Listener,
        stop: threading.Event,
    ) -> None:
        self._plan = plan
        self._repository = repository
        self._record = record
        self._ledger = ledger
        self._sampler = sampler
        self._tell = listener
        self._stop = stop
        self._placeholders = parse(plan.script.argv)
        self._knowledge: Mapping[str, Any] = {"placeholders": list(self._placeholders)}
        self._space: ResolvedSpace | None = None
        self._budget = Budget(plan.trials, plan.budget_s, time.monotonic(), ledger.seconds())

    def run(self, *, resumed: bool) -> StudyResult:
        """Baseline, search, finals; each part carries on where an earlier process left it."""
        plan = self._plan
        self._tell(
            StudyStarted(
                plan.name, str(plan.folder), plan.script, plan.device, plan.trials, plan.budget_s,
                self._budget.finals_share, len(self._searched()), resumed,
            )
        )  # fmt: skip
        self._repository.save_state(self._record.id, "running")
        winner: Winner | None = None
        interrupted = False
        try:
            self._measure_baseline()
            why = self._search(self._resolve_space())
            winner = self._finals()
            self._repository.save_state(self._record.id, "finished")
        except Interrupted:
            why, interrupted = "stopped on request", True
        best = self._best()
        result = StudyResult(
            winner, best, self._gain(best), tuple(self._ledger.trials), why, self._budget.elapsed(time.monotonic()),
            interrupted, self._space, self._knowledge,
        )  # fmt: skip
        self._tell(StudyFinished(winner, best, len(result.trials), result.seconds, why, interrupted))
        return result

    def _measure_baseline(self) -> None:
        baseline = self._baseline()
        if baseline is None:
            trial = self._ledger.waiting() or self._ledger.begin(Phase.BASELINE, {}, "what the script does by itself")
            baseline = self._conduct(trial)
        assert baseline.outcome is not None
        if not baseline.outcome.complete:
            # What is wrong may be mended outside of the script, so it is run again next time.
            self._ledger.forget(baseline)
            raise _refusal(baseline.outcome, self._plan)
        facts = {**baseline.outcome.facts, "effective_batch": self._plan.effective_batch}
        self._knowledge = extend_facts(facts, self._placeholders)

    def _resolve_space(self) -> ResolvedSpace:
        plan = self._plan
        space = extend_space(plan.space, self._placeholders)
        known = Known(plan.device, plan.cores, facts=self._knowledge)
        resolved = resolve(space, known, selection=plan.selection, pinned=plan.pinned)
        identity.check_space(self._record.space, resolved, str(plan.folder))
        self._repository.save_space(self._record.id, identity.space_document(resolved))
        self._space = resolved
        self._tell(
            SpaceResolved(
                {axis.knob.name: axis.values for axis in resolved.axes},
                {axis.knob.name: axis.values[axis.as_written] for axis in resolved.axes},
                dict(resolved.left_out), resolved.pinned, resolved.size,
            )
        )  # fmt: skip
        return resolved

    def _search(self, space: ResolvedSpace) -> str:
        """Runs trials until a bound is reached; says which."""
        while True:
            self._leave_if_stopped()
            trial = self._ledger.waiting()
            if trial is None:
                over = self._search_is_over(space)
                if over:
                    return over
                if self._anchor_is_due():
                    self._conduct(self._ledger.begin(Phase.ANCHOR, {}, "whether the machine drifts"))
                    self._note_drift()
                    continue
                proposal = self._sampler.propose(History(space, self._plan.objective, self._ledger.trials))
                if proposal is None:
                    return "every config worth a trial has been tried"
                trial = self._ledger.begin(Phase.SEARCH, proposal.config, proposal.why)
            self._conduct(trial)

    def _anchor_is_due(self) -> bool:
        """Whether the baseline was measured too long ago to hold the next trials against it."""
        since = 0
        for trial in reversed(self._ledger.trials):
            if trial.phase in (Phase.BASELINE, Phase.ANCHOR):
                break
            since += trial.phase is Phase.SEARCH
        return since >= self._plan.anchor_every

    def _note_drift(self) -> None:
        anchors = [trial for trial in self._ledger.trials if trial.phase in (Phase.BASELINE, Phase.ANCHOR)]
        drift = Yardstick(self._ledger.trials, self._plan.objective).drift(anchors[-1].number - 1)
        if drift > MOVED:
            self._tell(
                Noted(f"the baseline moved by {drift - 1:.0%} since trial {anchors[-2].number}: gains are rough")
            )

    def _search_is_over(self, space: ResolvedSpace) -> str:
        done = self._searched()
        if not space.axes and not space.pinned:
            return "there is nothing to search"
        by_budget = self._budget.search_is_over(time.monotonic(), len(done), self._trial_s())
        if by_budget:
            return by_budget
        failed = [t for t in done[-MANY_FAILURES:] if score_of(t.outcome, self._plan.objective) is None]
        if len(failed) == MANY_FAILURES:
            return f"the last {MANY_FAILURES} configs did not work"
        patience = self._plan.patience
        if patience is not None and self._trials_since_gain(done) >= patience:
            return f"{patience} trials in a row brought no gain"
        return ""

    def _finals(self) -> Winner | None:
        """Runs what the schedule still lacks, adds rounds while that may decide more, and gives the verdict."""
        schedule = self._schedule()
        if schedule is None:
            return None
        self._tell(FinalsStarted(schedule.candidates, schedule.rounds))
        while True:
            self._play(schedule)
            winner = decide(schedule, self._ledger.trials, self._plan.objective)
            longer = self._longer(schedule, winner)
            if longer is None:
                return winner
            schedule = longer

    def _play(self, schedule: Schedule) -> None:
        objective = self._plan.objective
        while True:
            self._leave_if_stopped()
            trial = self._ledger.waiting()
            if trial is None:
                dropped = failed_in(schedule, self._ledger.trials, objective)
                run = schedule.next_run(self._ledger.trials, dropped)
                if run is None:
                    return
                trial = self._ledger.begin(Phase.FINALS, run[1], schedule.why(run[0]))
            self._tell_pairs(schedule, self._conduct(trial))

    def _longer(self, schedule: Schedule, winner: Winner | None) -> Schedule | None:
        """The schedule with more rounds; None where it is decided, or where there is no time or look left."""
        rounds = min(schedule.rounds + MORE_ROUNDS, self._plan.most_rounds)
        if schedule.looks == 1 or is_decided(winner) or rounds <= schedule.rounds:
            return None
        runs = (rounds - schedule.rounds) * (1 + len(schedule.candidates))
        left = self._budget.seconds_left(time.monotonic())
        if left is not None and left < runs * self._trial_s():
            return None
        longer = replace(schedule, rounds=rounds)
        self._save_schedule(longer)
        self._tell(Noted(f"still undecided: {rounds - schedule.rounds} more rounds"))
        return longer

    def _schedule(self) -> Schedule | None:
        """As many candidates and rounds as the time left allows; those of finals that have begun already."""
        plan, searched = self._plan, self._searched()
        stored = self._repository.finals(self._record.id)
        if stored and stored["after"] == len(searched):
            by_number = {trial.number: trial for trial in searched}
            begun = tuple(by_number[number] for number in stored["candidates"])
            return Schedule(begun, stored["rounds"], plan.seed, stored["looks"])
        candidates = choose_candidates(self._ledger.trials, plan.objective, plan.finalists)
        if not candidates:
            return None
        now = time.monotonic()
        count, rounds = self._budget.finals_fit(now, self._trial_s(), len(candidates), plan.finals_rounds)
        if not count:
            return None
        # Where all rounds fit there may be time for more; how often they are looked at is settled before the first.
        looks = 1 + -(-(plan.most_rounds - rounds) // MORE_ROUNDS) if rounds == plan.finals_rounds else 1
        schedule = Schedule(candidates[:count], rounds, plan.seed, looks)
        self._save_schedule(schedule)
        return schedule

    def _save_schedule(self, schedule: Schedule) -> None:
        document = {
            "after": len(self._searched()), "candidates": [trial.number for trial in schedule.candidates],
            "rounds": schedule.rounds, "looks": schedule.looks,
        }  # fmt: skip
        self._repository.save_finals(self._record.id, document)

    def _tell_pairs(self, schedule: Schedule, trial: Trial) -> None:
        for candidate in schedule.candidates:
            if trial.config and key_of(trial.config) != key_of(candidate.config):
                continue
            pairs = pairs_of(schedule, candidate.config, self._ledger.trials, self._plan.objective)
            last = trial.why.rpartition(" ")[2]
            if not pairs.gains or trial.outcome is None or not trial.outcome.complete:
                continue
            if len(pairs.gains) == int(last):
                so_far = pairs.ratio(schedule.confidence, self._plan.objective) if len(pairs.gains) > 2 else None
                self._tell(PairFinished(len(pairs.gains), schedule.rounds, candidate.config, pairs.gains[-1], so_far))

    def _conduct(self, trial: Trial) -> Trial:
        now = time.monotonic()
        done = len(self._searched())
        self._tell(
            TrialStarted(trial.number, trial.phase, trial.config, trial.why, done, self._budget.seconds_left(now))
        )
        finished = self._ledger.conduct(trial, self._knowledge)
        best = self._best()
        self._tell(TrialFinished(finished, self._gain(finished), best, self._gain(best)))
        return finished

    def _gain(self, trial: Trial | None) -> float | None:
        return Yardstick(self._ledger.trials, self._plan.objective).gain(trial)

    def _trials_since_gain(self, done: list[Trial]) -> int:
        best, since = 0.0, 0
        for trial in done:
            own = self._gain(trial) or 0.0
            improved = own > best * WORTH_HAVING
            best, since = (own, 0) if improved else (best, since + 1)
        return since

    def _trial_s(self) -> float:
        seconds = [trial.outcome.seconds for trial in self._ledger.trials if trial.outcome is not None]
        return statistics.median(seconds) if seconds else FIRST_TRIAL_S

    def _baseline(self) -> Trial | None:
        return next((trial for trial in self._ledger.trials if trial.phase is Phase.BASELINE), None)

    def _searched(self) -> list[Trial]:
        return [trial for trial in self._ledger.trials if trial.phase in (Phase.BASELINE, Phase.SEARCH)]

    def _best(self) -> Trial | None:
        return Yardstick(self._ledger.trials, self._plan.objective).best_of(self._searched())

    def _leave_if_stopped(self) -> None:
        if self._stop.is_set():
            raise Interrupted


def _refusal(outcome: Outcome, plan: StudyPlan) -> UserScriptError | UntunableError:
    """Why a baseline without a figure ends the study."""
    log = plan.folder / "trials" / "0000" / "log.txt"
    if outcome.kind is OutcomeKind.USER_ERROR and outcome.reason in ("script-raised", "script-failed"):
        return UserScriptError(
            f"the script fails by itself: {outcome.detail}",
            hint=f"all that it printed is in {log}; mend it and run the same command again",
            traceback_text=outcome.traceback_text,
        )
    return UntunableError(
        outcome.detail or f"{outcome.kind}: {outcome.reason}", hint=_HINTS.get(outcome.reason, f"see {log}")
    )


_HINTS = {
    "no-step": "a step is an optimizer's step(); a script that has none can tell of its own with tuner.report(step=n)",
    "too-short": "let it train longer: more epochs or more data",
    "deadline": "give a trial more time with --trial-timeout",
    "no-progress": "the script stands still; does it wait for something, such as a download or an answer?",
    "device-oom": "the script as written doesn't fit the device: choose a smaller batch or another device",
    "host-oom": "the script as written doesn't fit the machine's memory: use fewer workers or raise --max-memory",
    "nan": "its loss is not a number as written: tune it once it trains",
}
