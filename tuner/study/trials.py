"""The store of a study's trials: what has finished is never lost and never run again."""

from __future__ import annotations

import math
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

from tuner.analysis.gain import comparable
from tuner.formatting import above_text
from tuner.model import TOOK_THE_STUDY_DOWN, Config, Outcome, OutcomeKind, Phase, Trial
from tuner.runner.classify import DEVICE_OOM, HOST_OOM
from tuner.runner.created_files import move_created_files
from tuner.runner.launch import mask_request
from tuner.runner.request import Limits
from tuner.storage import codec
from tuner.storage.atomic import write_durably
from tuner.storage.database import NewTrial, Repository, TrialRecord, TrialState
from tuner.storage.folder import CHECKS, OUTCOME, REQUEST, STANDING, check_there, trial_folder
from tuner.storage.records import last_written
from tuner.study.plan import StudyPlan

_OF_THEIR_TIME = frozenset({Phase.BASELINE, Phase.ROTATION, Phase.FINALS})
"""Phases whose runs aren't tried again once the limit of memory is higher."""
MOST_STARTS = 3
"""A trial that was running so often when the study died is taken for the cause."""


class TrialStore:
    """The trials of one study, in its database and its folder. Only the holder of the folder's lock may have one.

    ``trials`` are the finished ones of every phase, by number, held against the limits of the plan: a study may be
    resumed with tighter ones. Not among them are those that exceeded only a limit of their memory that is higher by
    now: their runs may be done again, and ``may_fit_now`` has the numbers of those that weren't yet. Methods raise
    ``StorageError``.
    """

    def __init__(self, plan: StudyPlan, repository: Repository, study_id: int) -> None:
        self._folder = plan.folder
        self._limits = plan.limits
        self._host = plan.host
        self._repository = repository
        self._study_id = study_id
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{time.time():.0f}"
        stored = repository.trials(study_id)
        aside = [trial for trial in stored if _may_fit_now(trial, plan.limits)]
        held = (
            replace(trial, outcome=within_limits(trial.outcome, plan.limits, trial.config))
            for trial in stored
            if trial.outcome is not None and trial not in aside
        )
        self.trials: list[Trial] = comparable(held, plan.host)
        done = [_what_ran(trial) for trial in self.trials]
        self.may_fit_now = tuple(trial.number for trial in aside if _what_ran(trial) not in done)

    def recover(self) -> None:
        """Takes over the trials of a process that died: those with an outcome on disk are finished, others wait."""
        for apart in (*(self._folder / STANDING).glob("[0-9]*"), *(self._folder / CHECKS).glob("*")):
            move_created_files(apart, has_died=True)
            mask_request(apart / REQUEST)
        for record in self._repository.records(self._study_id):
            # Whoever ran it is dead: the folder's lock is ours.
            if record.state is TrialState.RUNNING:
                self._recover(record)

    def spent_s(self) -> float:
        """Seconds in which trials that have finished ran, repeats included, in all processes of the study.

        Those of a round of the finals run at once, or are stored as if they had: what several take counts once.
        """
        records = self._repository.records(self._study_id)
        spans = sorted((r.started, r.finished) for r in records if r.finished is not None and r.started is not None)
        spent_s, counted_until = 0.0, -math.inf
        for started, finished in spans:
            spent_s += max(0.0, finished - max(started, counted_until))
            counted_until = max(counted_until, finished)
        return spent_s

    def begin(self, new: NewTrial) -> Trial:
        """A new trial, running, whose number is its place in the study; the same run where that was interrupted."""
        waiting = self._repository.claim_trial(self._study_id, self._owner, run=new)
        return waiting or self._repository.start_trial(self._study_id, new, self._owner)

    def claim(self, *, finals: bool = False) -> Trial | None:
        """A trial that was interrupted, running again; None where there is none. To be run before any new one.

        ``finals``: whether it may be one of the finals, whose runs go in rounds. Those of screens wait until somebody
        asks for them (``begin``): another candidate may be screened by then.
        """
        without = {Phase.SCREEN} if finals else {Phase.SCREEN, Phase.FINALS}
        return self._repository.claim_trial(self._study_id, self._owner, without)

    def finish(self, trial: Trial, outcome: Outcome) -> Trial:
        """Keeps the outcome, and returns the trial as it is stored.

        It lies on disk before the database learns of it, so that a death in between loses nothing.
        """
        outcome = within_limits(outcome, self._limits, trial.config)
        check_there(self._folder)
        write_durably(trial_folder(self._folder, trial.number) / OUTCOME, codec.encode_outcome(outcome).encode())
        return self._finish(trial, outcome)

    def requeue(self, trial: Trial) -> None:
        """Lets the trial wait to be run again, whatever has come of it."""
        self._repository.requeue_trial(self._study_id, trial.number, attempts=0)
        self.trials = [stored for stored in self.trials if stored.number != trial.number]

    def find(self, new: NewTrial) -> Trial | None:
        """The finished trial that was the same run."""
        return next((trial for trial in self.trials if new.is_run_of(trial)), None)

    def _recover(self, record: TrialRecord) -> None:
        folder = trial_folder(self._folder, record.trial.number)
        # What lies between then and now is no time of the study's.
        outcome, ended = _outcome_on_disk(folder), last_written(folder, record.started or 0.0)
        if outcome is None:
            move_created_files(folder, has_died=True)
            if record.attempts < MOST_STARTS:
                self._repository.requeue_trial(self._study_id, record.trial.number)
                return
            detail = f"the study was killed {record.attempts} times while it ran"
            outcome = Outcome(OutcomeKind.CRASHED, TOOK_THE_STUDY_DOWN, detail)
        self._finish(record.trial, outcome, ended)

    def _finish(self, trial: Trial, outcome: Outcome, ended: float | None = None) -> Trial:
        self._repository.finish_trial(self._study_id, trial.number, outcome, ended)
        # What a process that died left may have been within the limits of then; it is stored as it was written.
        held = within_limits(outcome, self._limits, trial.config)
        trials = [*self.trials, replace(trial, outcome=held)]
        self.trials = comparable(sorted(trials, key=lambda stored: stored.number), self._host)
        return next(stored for stored in self.trials if stored.number == trial.number)


def _outcome_on_disk(folder: Path) -> Outcome | None:
    try:
        return codec.decode_outcome((folder / OUTCOME).read_bytes())
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
        (DEVICE_OOM, "device", measurement.peak_device_bytes, limits.max_device_bytes),
        (HOST_OOM, "host", measurement.peak_host_bytes, limits.max_host_bytes),
    ):
        if most is not None and peak is not None and peak > most:
            detail = f"of the {what}'s memory it took {above_text(peak, most)}"
            return replace(outcome, kind=OutcomeKind.INFEASIBLE, reason=reason, detail=detail, over_limit=most)
    return outcome


def _what_ran(trial: Trial) -> tuple[object, ...]:
    return trial.phase, trial.config, trial.seed, trial.samples, trial.side


def _may_fit_now(trial: Trial, limits: Limits) -> bool:
    """Whether the trial exceeded nothing but a limit of its memory that is higher by now, and may be run again by
    itself: one of the finals is held against those of its round, which are of that time, and a rotation has ranked
    configs until then.
    """
    outcome = trial.outcome
    if outcome is None or outcome.over_limit is None or trial.phase in _OF_THEIR_TIME:
        return False
    now = limits.max_device_bytes if outcome.reason == DEVICE_OOM else limits.max_host_bytes
    return now is None or outcome.over_limit < now
