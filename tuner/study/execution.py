"""Runs trials and keeps their outcomes: what has finished is never lost and never run again."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tuner.analysis.cold_start import with_cold_starts
from tuner.analysis.contention import contamination, disturbance
from tuner.child.records import Window
from tuner.errors import InfrastructureError, StorageError
from tuner.knowledge import Knowledge
from tuner.model import Config, Outcome, OutcomeKind, Phase, Trial
from tuner.runner.created_files import move_created_files
from tuner.runner.request import Interrupted, Limits, Runner, TrialRequest
from tuner.space.arguments import render
from tuner.storage import codec
from tuner.storage.atomic import write_durably
from tuner.storage.database import NewTrial, Repository, TrialRecord, TrialState
from tuner.storage.folder import COMPILE_CACHE, OUTCOME, TRIALS, trial_folder
from tuner.study.plan import StudyPlan

ATTEMPTS = 3
"""How often a trial is started before a machine that keeps failing is blamed on it."""
REPEATS_SHARE = 0.2
REPEATS = 3
"""After so many repeats in a row that were disturbed as well, the machine is taken as it is."""
_DISK_FAULTS = frozenset({"disk-full", "unwritable"})


class Ledger:
    """The trials of one study. Only the holder of the study's folder may have one."""

    def __init__(
        self,
        plan: StudyPlan,
        repository: Repository,
        study_id: int,
        runner: Runner,
        *,
        stop: threading.Event,
        note: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._note = note
        self._patience_with_noise = REPEATS
        self._repeats_s = 0.0
        self._repository = repository
        self._study_id = study_id
        self._runner = runner
        self._stop = stop
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{time.time():.0f}"
        self.trials: list[Trial] = with_cold_starts(self._judged(trial) for trial in repository.trials(study_id))

    def recover(self) -> None:
        """Takes over the trials of a process that died: those with an outcome on disk are finished, others wait."""
        # Whoever ran them is dead: the folder's lock is ours.
        running = (r for r in self._repository.records(self._study_id) if r.state is TrialState.RUNNING)
        for record in running:
            outcome = self._outcome_on_disk(record)
            if outcome is None:
                move_created_files(self._folder(record.trial))
            if outcome is None and record.attempts >= ATTEMPTS:
                detail = f"the study died with it {record.attempts} times"
                outcome = Outcome(OutcomeKind.CRASHED, "took-the-study-down", detail)
            if outcome is not None:
                self._store(replace(record.trial, outcome=outcome))
            else:
                self._repository.requeue_trial(self._study_id, record.trial.number)

    def seconds(self) -> float:
        """What the finished trials took from start to end, repeats included, in all runs of the study."""
        records = self._repository.records(self._study_id)
        return sum(r.finished - r.started for r in records if r.finished is not None and r.started is not None)

    def waiting(self) -> Trial | None:
        """A trial that was interrupted, to be run before any new one."""
        return self._repository.claim_trial(self._study_id, self._owner)

    def begin(self, new: NewTrial) -> Trial:
        """A new trial; its number is its place in the study."""
        return self._repository.start_trial(self._study_id, new, self._owner)

    def conduct(
        self,
        trial: Trial,
        knowledge: Knowledge,
        window: Window,
        *,
        time_for: Callable[[float], bool],
    ) -> Trial:
        """Runs the trial and stores its outcome. Raises ``Interrupted``, ``StorageError``, ``InfrastructureError``.

        The outcome lies on disk before the database learns of it, so that a death in between loses nothing.
        ``time_for`` says whether there is time for so many seconds of another run, should this one be disturbed.
        """
        plan = self._plan
        request = TrialRequest(
            self._folder(trial), replace(plan.script, argv=render(plan.script.argv, trial.config)), plan.device,
            trial.config, knowledge, window, plan.limits, trial.seed, trial.side.in_child if trial.side else None,
            plan.folder / COMPILE_CACHE,
        )  # fmt: skip
        once = trial.phase is Phase.SCREEN
        outcome = self._run(trial, request) if once else self._undisturbed(trial, request, time_for)
        judged = self._judged(replace(trial, outcome=outcome))
        assert judged.outcome is not None
        write_durably(self._folder(trial) / OUTCOME, codec.encode_outcome(judged.outcome).encode())
        return self._store(judged)

    def forget(self, trial: Trial) -> None:
        """Lets the trial be run again when the study is resumed."""
        self._repository.requeue_trial(self._study_id, trial.number, attempts=0)
        self.trials = [kept for kept in self.trials if kept.number != trial.number]

    def _undisturbed(self, trial: Trial, request: TrialRequest, time_for: Callable[[float], bool]) -> Outcome:
        """The trial's outcome, of a second run where other processes disturbed the first one.

        A disturbed run is not averaged in: the calmer of the two counts, and the other one's records are kept
        beside it. A machine that is always busy isn't asked again and again.
        """
        first = self._run(trial, request)
        host = self._plan.host
        disturbed = contamination(first, host)
        if not disturbed:
            return first
        if self._patience_with_noise <= 0 or not (self._may_repeat(first) and time_for(first.seconds)):
            self._note(f"trial {trial.number} was disturbed: {disturbed}")
            return first
        self._note(f"trial {trial.number} is measured again: {disturbed}")
        folder = self._folder(trial)
        aside = folder.with_name(f"{folder.name}.disturbed")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        second = self._run(trial, request)
        self._repeats_s += second.seconds
        if contamination(second, host):
            self._patience_with_noise -= 1
            if self._patience_with_noise == 0:
                self._note("the machine stays busy: trials aren't repeated any more, and their figures are rougher")
        else:
            self._patience_with_noise = REPEATS
        if disturbance(first, host) < disturbance(second, host):
            swap_folders(folder, aside)
            return first
        return second

    def _may_repeat(self, first: Outcome) -> bool:
        """Repeats take no more than a share of the budget: many rough figures find more than two good ones."""
        budget_s = self._plan.budget_s
        return budget_s is None or self._repeats_s + first.seconds <= REPEATS_SHARE * budget_s

    def _run(self, trial: Trial, request: TrialRequest) -> Outcome:
        """One run. A fault of the machine gets more attempts; then it is told."""
        for attempt in range(1, ATTEMPTS + 1):
            outcome = self._attempt(trial, request)
            if outcome.kind is not OutcomeKind.INFRASTRUCTURE:
                return outcome
            if outcome.reason in _DISK_FAULTS or attempt == ATTEMPTS:
                break
        self._repository.requeue_trial(self._study_id, trial.number, attempts=0)
        raise _fault(outcome, self._plan.folder)

    def _attempt(self, trial: Trial, request: TrialRequest) -> Outcome:
        shutil.rmtree(request.folder, ignore_errors=True)
        try:
            return self._runner.run(request, self._stop)
        except Interrupted:
            self._repository.requeue_trial(self._study_id, trial.number, attempts=0)
            raise

    def _judged(self, trial: Trial) -> Trial:
        """The trial under the limits of now: a study may be resumed with tighter ones."""
        if trial.outcome is None:
            return trial
        return replace(trial, outcome=within_limits(trial.outcome, self._plan.limits, trial.config))

    def _store(self, trial: Trial) -> Trial:
        assert trial.outcome is not None
        self._repository.finish_trial(self._study_id, trial.number, trial.outcome)
        self.trials = with_cold_starts(sorted([*self.trials, trial], key=lambda stored: stored.number))
        return next(stored for stored in self.trials if stored.number == trial.number)

    def _folder(self, trial: Trial) -> Path:
        return trial_folder(self._plan.folder, trial.number)

    def _outcome_on_disk(self, record: TrialRecord) -> Outcome | None:
        try:
            return codec.decode_outcome((self._folder(record.trial) / OUTCOME).read_bytes())
        except (OSError, ValueError):
            return None


def within_limits(outcome: Outcome, limits: Limits, config: Config) -> Outcome:
    """The outcome, infeasible where its config took more memory than allowed.

    The script as written is what it is: a limit can't forbid it.
    """
    measurement = outcome.measurement
    if measurement is None or not outcome.complete or not config:
        return outcome
    for reason, what, peak, most in (
        ("device-oom", "the device", measurement.peak_device_bytes, limits.max_device_bytes),
        ("host-oom", "the host", measurement.peak_host_bytes, limits.max_host_bytes),
    ):
        if most is not None and peak > most:
            detail = f"it took {peak:,} bytes of {what}, of {most:,} allowed"
            return replace(outcome, kind=OutcomeKind.INFEASIBLE, reason=reason, detail=detail)
    return outcome


def swap_folders(one: Path, other: Path) -> None:
    """Exchanges the names of two folders."""
    between = one.with_name(f"{one.name}.swap")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def _fault(outcome: Outcome, folder: Path) -> StorageError | InfrastructureError:
    if outcome.reason in _DISK_FAULTS:
        return StorageError(
            outcome.detail, hint=f"free some space or make {folder} writable, then run the same command: it resumes"
        )
    return InfrastructureError(
        f"a trial could not be run, in {ATTEMPTS} attempts: {outcome.detail} ({outcome.reason})",
        hint=f"the trial's log.txt in {folder / TRIALS} may say more; the same command resumes",
    )
