"""Runs one trial to its outcome: again after a fault of the machine, and again where other processes disturbed it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tuner.analysis.cold_start import COLD
from tuner.analysis.contention import contamination, disturbance
from tuner.child.records import Window
from tuner.errors import InfrastructureError, StorageError
from tuner.knowledge import Knowledge
from tuner.model import Outcome, OutcomeKind, Phase, Trial
from tuner.runner.classify import MACHINE_FULL
from tuner.runner.request import Runner, TrialRequest, probe_window, screen_window
from tuner.space.arguments import render
from tuner.storage.folder import COMPILE_CACHE, TRIALS, trial_folder
from tuner.study.plan import StudyPlan

ATTEMPTS = 3
"""So many faults of the machine in a row, and the study ends."""
REPEATS_SHARE = 0.2
"""Of the budget that repeats of contaminated runs may take."""
REPEATS = 3
"""After so many repeats in a row that were contaminated as well, the machine is taken as it is."""
HOPELESS = 0.6
"""A trial ends early where its rate is sure to stay below this share of the best one's."""
MEMORY_PAUSE_S = 20.0
"""Before a trial is run again that others left no memory to: they may be through by then. Longer each time."""
_DISK_FAULTS = frozenset({"disk-full", "unwritable"})


class TrialExecutor:
    """Runs the trials of a plan, one at a time. Needs no database: where they come from is the caller's business."""

    def __init__(
        self, plan: StudyPlan, runner: Runner, *, stop: threading.Event, note: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._runner = runner
        self._stop = stop
        self._note = note
        self._repeats_left = REPEATS
        self._repeats_s = 0.0

    def execute(
        self, trial: Trial, knowledge: Knowledge, window: Window, *, time_for: Callable[[float], bool]
    ) -> Outcome:
        """The trial's outcome; its records are in the trial's folder then.

        ``knowledge`` is what the child is told of the script. ``time_for`` says whether there is time for another run
        of so many seconds, should this one be contaminated. Raises ``Interrupted``, ``StorageError`` and
        ``InfrastructureError``.
        """
        request = self.request_of(trial, knowledge, window)
        if trial.phase is Phase.SCREEN:
            return self._run(request)  # it compares losses, which no other process changes
        return self._undisturbed(trial.number, request, time_for)

    def request_of(self, trial: Trial, knowledge: Knowledge, window: Window) -> TrialRequest:
        """What the runner is asked for the trial. A watch that breaks the script stays out of every trial."""
        plan, given = self._plan, knowledge.given(trial.config)
        return TrialRequest(
            trial_folder(plan.folder, trial.number), replace(plan.script, argv=render(plan.script.argv, given)),
            plan.device, trial.config, knowledge, window, plan.limits, trial.seed,
            trial.side.in_child if trial.side is not None else None, plan.folder / COMPILE_CACHE,
            plan.without | frozenset(knowledge.without),
        )  # fmt: skip

    def check(self, request: TrialRequest) -> Outcome:
        """One run that is no trial: what it ends as says whose fault a failure is. Raises ``Interrupted``."""
        shutil.rmtree(request.folder, ignore_errors=True)
        return self._runner.run(request, self._stop)

    def _undisturbed(self, number: int, request: TrialRequest, time_for: Callable[[float], bool]) -> Outcome:
        """The outcome, of a second run where other processes contaminated the first one.

        A contaminated run is not averaged in: the calmer of the two counts, and the other one's records are kept
        beside it. A config that fails the second time has failed, however calm that run was. A machine that is always
        busy isn't asked again and again.
        """
        first = self._run(request)
        host = self._plan.host
        cause = contamination(first, host)
        if not cause:
            return first
        if self._repeats_left <= 0 or not (self._may_repeat(first) and time_for(first.seconds)):
            self._note(f"trial {number} was disturbed: {cause}")
            return first
        self._note(f"trial {number} is measured again: {cause}")
        folder = request.folder
        aside = folder.with_name(f"{folder.name}.disturbed")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        second = self._run_as_cold(request) if _was_cold(first) else self._run(request)
        self._repeats_s += second.seconds
        self._count_repeat(contaminated=bool(contamination(second, host)))
        held = second.complete or not request.config
        if held and disturbance(first, host) < disturbance(second, host):
            swap_folders(folder, aside)
            return first
        return second

    def _run_as_cold(self, request: TrialRequest) -> Outcome:
        """One run with nothing compiled yet: what a start costs is measured again as well, and not lost."""
        cache = request.folder.with_name(f"{request.folder.name}.{COMPILE_CACHE}")
        shutil.rmtree(cache, ignore_errors=True)
        try:
            return self._run(replace(request, compile_cache=cache))
        finally:
            shutil.rmtree(cache, ignore_errors=True)

    def _may_repeat(self, first: Outcome) -> bool:
        """Repeats take no more than a share of the budget: many rough figures find more than two good ones."""
        budget_s = self._plan.budget_s
        return budget_s is None or self._repeats_s + first.seconds <= REPEATS_SHARE * budget_s

    def _count_repeat(self, *, contaminated: bool) -> None:
        if not contaminated:
            self._repeats_left = REPEATS
            return
        self._repeats_left -= 1
        if self._repeats_left == 0:
            self._note("the machine stays busy: trials aren't repeated any more, and their figures are rougher")

    def _run(self, request: TrialRequest) -> Outcome:
        """One run. A fault of the machine gets more attempts; then it is raised."""
        for attempt in range(1, ATTEMPTS + 1):
            shutil.rmtree(request.folder, ignore_errors=True)
            outcome = self._runner.run(request, self._stop)
            if outcome.kind is not OutcomeKind.INFRASTRUCTURE:
                return outcome
            if outcome.reason in _DISK_FAULTS or attempt == ATTEMPTS:
                break
            if outcome.reason == MACHINE_FULL:
                self._note(f"a trial is run again: {outcome.detail}")
                self._stop.wait(attempt * MEMORY_PAUSE_S)
        raise _fault(outcome, self._plan.folder)


def window_of(trial: Trial, plan: StudyPlan, best: Trial | None, slowest: float = 1.0) -> Window:
    """How long the trial is measured; ``best`` is the best one of the search so far.

    ``slowest``: the baseline's slowest stretch as a share of its rate. The best one may have met a faster machine.

    Baseline and anchors get all the time, a probe a quarter; a screen ends by its samples. Others get half of it: a
    search trial only ranks, and may end once it is hopeless, and in the finals what differs from run to run is more
    than what differs within one, so that more runs say more than longer ones.
    """
    if trial.samples is not None:
        return screen_window(trial.samples)
    if trial.phase is Phase.PROBE:
        return probe_window(plan.window)
    if trial.phase in (Phase.BASELINE, Phase.ANCHOR):
        return plan.window
    window = replace(plan.window, max_s=plan.window.max_s / 2)
    measurement = best.measurement if best is not None else None
    if trial.phase is Phase.FINALS or measurement is None or not plan.objective.is_rate:
        return window
    return replace(window, hopeless_below=HOPELESS * measurement.rate * slowest)


def _was_cold(outcome: Outcome) -> bool:
    return outcome.measurement is not None and outcome.measurement.compile_cache == COLD


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
    if outcome.reason == MACHINE_FULL:
        return InfrastructureError(
            f"the machine's memory was full {ATTEMPTS} times: {outcome.detail}",
            hint="end what takes the memory, then run the same command: it resumes",
        )
    return InfrastructureError(
        f"a trial could not be run, in {ATTEMPTS} attempts: {outcome.detail} ({outcome.reason})",
        hint=f"the trial's log.txt in {folder / TRIALS} may say more; the same command resumes",
    )
