"""Runs one trial to its outcome: again after a fault of the machine, and again where other processes disturbed it."""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.analysis.cold_start import COLD, COMPILE
from tuner.analysis.contention import contamination, disturbance
from tuner.analysis.race import Race
from tuner.analysis.turns import FEW_TURNS
from tuner.child.records import Window
from tuner.child.unison import APART, RANKS_APART
from tuner.devices.present import kind_of
from tuner.errors import InfrastructureError, StorageError
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase, Trial
from tuner.runner.classify import KILLED, MACHINE_FULL, OUT_OF_MEMORY
from tuner.runner.ranks import PORT_TAKEN
from tuner.runner.request import ByTurns, Runner, TrialRequest
from tuner.space.arguments import render
from tuner.storage.folder import COMPILE_CACHE, STANDING, TRIALS, check_there, trial_folder
from tuner.storage.moves import moving, place_beside, swap_folders
from tuner.study.lengths import WARMUP_S, turn_length_s
from tuner.study.plan import StudyPlan

ATTEMPTS = 3
"""So many faults of the machine in a row, and the study ends."""
REPEATS_SHARE = 0.2
"""Of the budget that repeats of contaminated runs may take."""
REPEATS = 3
"""After so many repeats in a row that were contaminated as well, the machine is taken as it is."""
MEMORY_PAUSE_S = 20.0
"""Before a trial is run again that others left no memory to: they may be through by then. Longer each time."""
_FORKED = (Phase.ROTATION, Phase.SEARCH, Phase.ANCHOR, Phase.SCREEN, Phase.PROBE)
"""They rank, look at losses or tell what holds the script up, and may share a fork server; what proves may not."""
_DISK_FAULTS = frozenset({"disk-full", "unwritable"})
_WAITS = frozenset({OutcomeKind.NO_PROGRESS, OutcomeKind.TIMED_OUT})


class TrialExecutor:
    """Runs the trials of a plan, by turns or one after the other. Needs no database: where they come from is the
    caller's business.

    ``obstacle``: why no trials take turns here, continuing a sentence of which the script is the subject; "" as long
    as they may.
    """

    def __init__(self, plan: StudyPlan, runner: Runner, *, stop: threading.Event, note: Callable[[str], None]) -> None:
        self._plan = plan
        self._runner = runner
        self._stop = stop
        self._note = note
        self._repeats_left = REPEATS
        self._repeats_s = 0.0
        self._turns_work = False
        self._failed_beside = 0
        self._without_reference = 0
        self.rotates = runner.rotates and kind_of(plan.device).rotates
        """Whether configs can take turns in one process."""
        takes_turns = runner.takes_turns and kind_of(plan.device).takes_turns
        self.obstacle = "" if takes_turns else f"no turns are taken on {plan.device.kind}"

    def execute(
        self,
        trial: Trial,
        knowledge: Knowledge,
        window: Window,
        *,
        time_for: Callable[[float], bool],
        race: Race | None = None,
        ends_by: float = math.inf,
        rotation: Sequence[Config] = (),
        left_s: float = math.inf,
    ) -> Outcome:
        """The trial's outcome; its records are in the trial's folder then.

        ``knowledge`` is what the child is told of the script. ``time_for`` says whether there is time for another run
        of so many seconds, should this one be contaminated. With a ``race`` it takes turns with the script as written,
        where it can. ``ends_by``, ``rotation``: see ``TrialRequest``; ``left_s``: of the study's time. Raises
        ``Interrupted``, ``StorageError`` and ``InfrastructureError``.
        """
        request = self.request_of(trial, knowledge, window, left_s)
        request = replace(request, ends_by=ends_by, rotation=tuple(rotation))
        if trial.phase is Phase.SCREEN:
            return self._run([request])[0]  # losses, which no other process changes
        if trial.phase is Phase.ROTATION:
            return self._rotated(request, time_for)
        run = self._run if race is None or self.obstacle else lambda requests: self._beside(requests[0], race)
        return self._undisturbed(f"trial {trial.number}", [request], time_for, run)[0]

    def execute_round(
        self,
        trials: Sequence[Trial],
        knowledge: Knowledge,
        window: Window,
        *,
        time_for: Callable[[float], bool],
        together: bool,
        ends_by: float = math.inf,
    ) -> list[Outcome]:
        """As ``execute``, of a round of the finals: by turns where they may be alive ``together``, and can."""
        if not together or self.obstacle or len(trials) < 2:
            return [self.execute(trial, knowledge, window, time_for=time_for, ends_by=ends_by) for trial in trials]
        requests = [replace(self.request_of(trial, knowledge, window), ends_by=ends_by) for trial in trials]
        numbers = ", ".join(str(trial.number) for trial in trials)
        return self._undisturbed(f"trials {numbers}", requests, time_for, self._by_turns)

    @property
    def kept_bytes(self) -> int:
        """The memory that the script as written takes already, where it is alive between trials."""
        return self._runner.kept_bytes

    def request_of(
        self, trial: Trial, knowledge: Knowledge, window: Window, left_s: float = math.inf
    ) -> TrialRequest:  # fmt: skip
        """What the runner is asked for the trial. A watch that breaks the script stays out of every trial.

        What is measured first takes no longer than the whole study may, or than what is left of its time.
        """
        plan, given, limits = self._plan, knowledge.given(trial.config), self._plan.limits
        if trial.phase is Phase.BASELINE and plan.budget_s is not None:
            limits = replace(limits, trial_timeout_s=min(limits.trial_timeout_s, plan.budget_s, left_s))
        return TrialRequest(
            trial_folder(plan.folder, trial.number), replace(plan.script, argv=render(plan.script.argv, given)),
            plan.device, trial.config, knowledge, window, limits, trial.seed,
            trial.side.in_child if trial.side is not None else None, plan.folder / COMPILE_CACHE,
            plan.without | frozenset(knowledge.without), fresh=trial.phase not in _FORKED, ranks=plan.ranks,
        )  # fmt: skip

    def check(self, request: TrialRequest) -> Outcome:
        """One run that is no trial: what it ends as says whose fault a failure is. Raises ``Interrupted``."""
        check_there(self._plan.folder)
        shutil.rmtree(request.folder, ignore_errors=True)
        return self._runner.run(request, self._stop)

    def _rotated(self, request: TrialRequest, time_for: Callable[[float], bool]) -> Outcome:
        """A rotation's outcome. One that others disturbed leaves nothing out, and what it ranks first is tried first:
        it is run again, as it is, where that can be through in time. What ended early says what ended it.
        """

        def is_in_time(seconds: float) -> bool:
            return time_for(seconds) and time.monotonic() + seconds <= request.ends_by

        def run(requests: Sequence[TrialRequest]) -> list[Outcome]:
            return self._undisturbed(f"trial {int(request.folder.name)}", requests, is_in_time, self._run)

        # What it compiles is kept from the study's cache: the first trial of a setting shows what a cold start takes. A
        # fork server has one cache for all of its trials, and so it would serve no others.
        compiles = any(COMPILE in config for config in request.rotation)
        outcome = (self._as_cold([replace(request, fresh=True)], run) if compiles else run([request]))[0]
        if outcome.reason == RANKS_APART:
            self.end_turns(APART)  # they would be apart in turns with other trials, too
        return outcome

    def _undisturbed(
        self,
        name: str,
        requests: Sequence[TrialRequest],
        time_for: Callable[[float], bool],
        run: Callable[[Sequence[TrialRequest]], list[Outcome]],
    ) -> list[Outcome]:
        """The outcomes, of a second run where other processes contaminated the first one.

        A contaminated run is not averaged in: the calmer of the two counts, and the other one's records are kept
        beside it. A config that fails the second time has failed, however calm that run was. A machine that is always
        busy isn't asked again and again.
        """
        first = run(requests)
        host, seconds = self._plan.host, sum(outcome.seconds for outcome in first)
        cause = next(filter(None, (contamination(outcome, host) for outcome in first)), "")
        if not cause:
            return first
        one = len(requests) == 1
        if self._repeats_left <= 0 or not (self._may_repeat(seconds) and time_for(seconds)):
            self._note(f"{name} {'was' if one else 'were'} disturbed: {cause}")
            return first
        self._note(f"{name} {'is' if one else 'are'} measured again: {cause}")
        aside = {request.folder: place_beside(request.folder, "disturbed") for request in requests}
        with moving(self._plan.folder):
            for folder, place in aside.items():
                folder.rename(place)
        second = self._as_cold(requests, run) if any(map(_was_cold, first)) else run(requests)
        self._repeats_s += sum(outcome.seconds for outcome in second)
        self._count_repeat(contaminated=any(contamination(outcome, host) for outcome in second))
        late = any(outcome.kind is OutcomeKind.UNFINISHED for outcome in second)
        held = all(outcome.complete or not request.config for outcome, request in zip(second, requests, strict=True))
        before, after = (max(disturbance(outcome, host) for outcome in runs) for runs in (first, second))
        if late or (held and before < after):
            with moving(self._plan.folder):
                for folder, place in aside.items():
                    swap_folders(folder, place)
            return first
        return _marked(second, [outcome.again_after for outcome in first])

    def _as_cold(
        self, requests: Sequence[TrialRequest], run: Callable[[Sequence[TrialRequest]], list[Outcome]]
    ) -> list[Outcome]:
        """A run with nothing compiled yet: what a start costs is measured again as well, and not lost."""
        caches = [place_beside(request.folder, COMPILE_CACHE) for request in requests]
        try:
            return run([replace(request, compile_cache=cache) for request, cache in zip(requests, caches, strict=True)])
        finally:
            for cache in caches:
                shutil.rmtree(cache, ignore_errors=True)

    def _beside(self, request: TrialRequest, race: Race) -> list[Outcome]:
        """One run, by turns with the script as written; by itself where that gives no evidence.

        The script as written is warmed up for no longer than the trial: the two begin alike.
        """
        plan, turn = self._plan, turn_length_s(self._plan, request.knowledge)
        window = replace(plan.window, warmup_s=min(plan.window.warmup_s, WARMUP_S), block_s=turn)
        written = replace(
            request, folder=plan.folder / STANDING, config=BASELINE, seed=None, script=replace(
                request.script, argv=render(plan.script.argv, request.knowledge.given(BASELINE))
            ), window=window, compile_cache=plan.folder / COMPILE_CACHE, ends_by=math.inf, standing=True,
        )  # fmt: skip
        found = self._not_killed([request], lambda: self._runner.run_beside(request, written, self._stop, race))
        measured = [outcome.measurement for outcome in found.outcomes if outcome.complete]
        if any(measurement is not None and measurement.reference is None for measurement in measured):
            self._without_reference += 1
            # One config may be odd; the next one says whether they all are.
            obstacle = found.obstacle or ("its windows hold too few turns" if self._without_reference > 1 else "")
            if not obstacle:
                self._note(f"trial {int(request.folder.name)}: {FEW_TURNS}")
            alone = self._confirmed([request], ByTurns((), obstacle))
            few = FEW_TURNS if not found.obstacle else ""
            return [replace(outcome, detail=few) if outcome.complete and few else outcome for outcome in alone]
        self._without_reference = 0
        return self._confirmed([request], found)

    def _by_turns(self, requests: Sequence[TrialRequest]) -> list[Outcome]:
        """One run of each, alive at once; one after the other where that gives no evidence."""
        found = self._not_killed(requests, lambda: self._runner.run_by_turns(requests, self._stop))
        return self._confirmed(requests, found)

    def _not_killed(self, requests: Sequence[TrialRequest], run: Callable[[], ByTurns]) -> ByTurns:
        """What a run comes to; what a second one does, where somebody killed a process of the first one.

        Twice is no accident: something kills what is run each time, such as a guard against full memory that isn't the
        kernel's own. Of a rotation what was measured stays: trials of its configs decide.
        """
        check_there(self._plan.folder)
        for request in requests:
            shutil.rmtree(request.folder, ignore_errors=True)
        found = run()
        killed = next((outcome for outcome in found.outcomes if outcome.reason in KILLED), None)
        if killed is None or killed.rotation:
            return found
        numbers = ", ".join(str(int(request.folder.name)) for request in requests)
        self._note(f"run again, since something killed it: trial {numbers}")
        for request in requests:
            shutil.rmtree(request.folder, ignore_errors=True)
        again, reasons = run(), [outcome.reason if outcome.reason in KILLED else "" for outcome in found.outcomes]
        return replace(again, outcomes=tuple(_marked(again.outcomes, reasons)))

    def _confirmed(self, requests: Sequence[TrialRequest], found: ByTurns) -> list[Outcome]:
        """The outcomes, where it doesn't matter that others were alive; else those of runs one after the other.

        What fails beside others may be able to be alive once only: a port, a lock, the memory. Where it doesn't fail
        alone, twice, no trials take turns any more: once may be chance, such as a race between a script's own ranks.
        Once turns are seen to work, what a config ends as is its own doing; but several ranks may come to wait for each
        other by turns only. A port that is taken before that is the script's own, and afterwards another program's.
        """
        outcomes = list(found.outcomes)
        apart = [outcome for outcome in outcomes if outcome.reason == RANKS_APART]
        if apart:
            found = replace(found, obstacle=APART)
        complete = bool(outcomes) and all(outcome.complete for outcome in outcomes)
        if complete and not found.obstacle:
            self._turns_work = True
            return outcomes
        late = next((outcome for outcome in outcomes if outcome.kind is OutcomeKind.UNFINISHED), None)
        if late is not None:
            # There is no time to run them alone, and nothing else is their own doing.
            return [late if outcome in apart else outcome for outcome in outcomes]
        # The memory for both may not be there, though each fits; but not where one by itself took more than it may.
        short = [outcome.reason in OUT_OF_MEMORY and outcome.over_limit is None for outcome in outcomes]
        alone_only = any(short) or any(o.kind is OutcomeKind.INFRASTRUCTURE for o in outcomes)
        waited = self._plan.ranks > 1 and any(o.kind is OutcomeKind.NO_PROGRESS for o in outcomes)
        if self._turns_work and outcomes and not (found.obstacle or alone_only or waited):
            return outcomes
        if found.obstacle:
            self.end_turns(found.obstacle)
        usual = self._plan.window
        window = replace(requests[0].window, max_s=usual.max_s / 2, warmup_s=usual.warmup_s, block_s=usual.block_s)
        alone = self._run([replace(request, window=window) for request in requests])
        failed = next((outcome for outcome in outcomes if not outcome.complete), None)
        own_port = not self._turns_work and any(outcome.reason == PORT_TAKEN for outcome in outcomes)
        held = failed is not None and not found.obstacle and (own_port or not alone_only)
        if failed is not None and held and all(outcome.complete for outcome in alone):
            # What waits may do so for what another one holds, and each further one as long; killed is what was twice.
            certain = own_port or waited or failed.kind in _WAITS or failed.reason in KILLED
            self._note_failed_beside(requests[outcomes.index(failed)], failed, is_certain=certain)
        return _marked(alone, [outcome.again_after for outcome in outcomes])

    def _note_failed_beside(self, request: TrialRequest, failed: Outcome, *, is_certain: bool) -> None:
        """Of a trial that failed beside another and not alone. ``is_certain``: it isn't chance, the first time."""
        self._failed_beside += 1
        why = f"failed beside another, and not alone ({failed.detail or failed.reason})"
        if is_certain or self._failed_beside > 1:
            self.end_turns(f"one {why}")
        else:
            self._note(f"trial {int(request.folder.name)} {why}: it may be chance, and the next ones take turns again")

    def end_turns(self, obstacle: str) -> None:
        """No trials take turns any more, and says so. ``obstacle``: as the attribute."""
        self.obstacle = obstacle
        self._note(f"trials take no turns from here on: {obstacle}")

    def _may_repeat(self, seconds: float) -> bool:
        """Repeats take no more than a share of the budget: many rough figures find more than two good ones."""
        budget_s = self._plan.budget_s
        return budget_s is None or self._repeats_s + seconds <= REPEATS_SHARE * budget_s

    def _count_repeat(self, *, contaminated: bool) -> None:
        if not contaminated:
            self._repeats_left = REPEATS
            return
        self._repeats_left -= 1
        if self._repeats_left == 0:
            self._note("the machine stays busy: trials aren't repeated any more, and their figures are rougher")

    def _run(self, requests: Sequence[TrialRequest]) -> list[Outcome]:
        """One run of each, one after the other. A fault of the machine gets more attempts; then it is raised."""
        return [self._run_alone(request) for request in requests]

    def _run_alone(self, request: TrialRequest) -> Outcome:
        for attempt in range(1, ATTEMPTS + 1):
            (outcome,) = self._not_killed([request], lambda: ByTurns((self._runner.run(request, self._stop),))).outcomes
            if outcome.kind is not OutcomeKind.INFRASTRUCTURE:
                return outcome
            if outcome.reason in _DISK_FAULTS or attempt == ATTEMPTS:
                break
            if outcome.reason == MACHINE_FULL:
                self._note(f"a trial is run again: {outcome.detail}")
                self._stop.wait(attempt * MEMORY_PAUSE_S)
        raise _fault(outcome, self._plan.folder)


def _marked(outcomes: Sequence[Outcome], reasons: Sequence[str]) -> list[Outcome]:
    """The outcomes, with the reasons for which those before them were killed; "" where one wasn't."""
    kept = [*reasons, *[""] * (len(outcomes) - len(reasons))]
    return [
        replace(outcome, again_after=outcome.again_after or reason)
        for outcome, reason in zip(outcomes, kept, strict=False)
    ]


def _was_cold(outcome: Outcome) -> bool:
    return outcome.measurement is not None and outcome.measurement.compile_cache == COLD


def _fault(outcome: Outcome, folder: Path) -> StorageError | InfrastructureError:
    if outcome.reason in _DISK_FAULTS:
        return StorageError(
            outcome.detail, hint=f"free some space or make {folder} writable, then run the same command: it resumes"
        )
    if outcome.reason == MACHINE_FULL:
        return InfrastructureError(
            f"the machine's memory was full {ATTEMPTS} times: {outcome.detail}",
            hint="end what takes the memory, then run the same command: it resumes",
        )
    if outcome.reason == PORT_TAKEN:
        return InfrastructureError(
            f"ranks can't meet at their port, in {ATTEMPTS} attempts: {outcome.detail}",
            hint="another program has the port, or the script gives two ranks the same number: it is to take RANK,"
            " WORLD_SIZE and MASTER_PORT from the environment, as torchrun gives them",
        )
    return InfrastructureError(
        f"a trial could not be run, in {ATTEMPTS} attempts: {outcome.detail} ({outcome.reason})",
        hint=f"the trial's log.txt in {folder / TRIALS} may say more; the same command resumes",
    )
