"""What the phases of a study share: its plan, its trials, its time, and what was learned of the script so far."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tuner.analysis.accuracy import Screened
from tuner.analysis.bottleneck import Bottleneck
from tuner.analysis.cold_start import COLD, WARM
from tuner.analysis.gain import BaselineTrack
from tuner.errors import InfrastructureError, StorageError, StudyMismatchError
from tuner.events import Listener, Noted, TrialFinished, TrialStarted
from tuner.knowledge import Knowledge
from tuner.model import Phase, Trial, baseline_of
from tuner.runner.request import Interrupted
from tuner.space.arguments import Placeholder
from tuner.space.resolve import ResolvedSpace
from tuner.storage.database import NewTrial, Repository, StudyRecord
from tuner.study.budget import Budget, StudyTime, searched
from tuner.study.execution import TrialExecutor, window_of
from tuner.study.plan import StudyPlan
from tuner.study.sources import Sources
from tuner.study.trials import TrialStore


@dataclass
class StudyContext:
    """One study while it runs. ``tell`` gets its events, ``clock`` gives seconds, ``stop`` is set to end it.

    ``resumed``: whether an earlier process has measured the baseline. The fields with defaults are filled in by the
    phases: what the baseline shows of the script, the search space, what holds the script up, how candidates learned,
    and the candidates that are fit for the finals, best first.
    """

    plan: StudyPlan
    repository: Repository
    record: StudyRecord
    store: TrialStore
    executor: TrialExecutor
    budget: Budget
    placeholders: Mapping[str, Placeholder]
    tell: Listener
    stop: threading.Event
    clock: Callable[[], float]
    resumed: bool
    knowledge: Knowledge
    space: ResolvedSpace | None = None
    bottleneck: Bottleneck | None = None
    screened: tuple[Screened, ...] = ()
    fit: tuple[Trial, ...] = field(default=())
    sources: Sources = field(init=False)
    _noted_warm: bool = False

    def __post_init__(self) -> None:
        self.sources = Sources(self.plan)

    @property
    def trials(self) -> list[Trial]:
        """The finished trials, of every phase."""
        return self.store.trials

    @property
    def time(self) -> StudyTime:
        """What is left of the study's time by now."""
        return StudyTime(self.plan, self.budget, self.clock(), self.trials, self.space)

    @property
    def track(self) -> BaselineTrack:
        """The baseline along the study so far."""
        return BaselineTrack(self.trials, self.plan.objective)

    @property
    def baseline(self) -> Trial | None:
        """Trial 0, once it is finished."""
        return baseline_of(self.trials)

    @property
    def searched(self) -> list[Trial]:
        """The finished trials of baseline and search."""
        return searched(self.trials)

    @property
    def best(self) -> Trial | None:
        """The best of them, which isn't proven by anything."""
        return self.track.best_of(self.searched)

    def note(self, text: str) -> None:
        """Tells people something."""
        self.tell(Noted(text))

    def claim(self) -> Trial | None:
        """A trial that was interrupted, to be run before any new one. Raises ``Interrupted`` when stopped."""
        if self.stop.is_set():
            raise Interrupted
        return self.store.claim()

    def run(self, new: NewTrial, *, kept_s: float | None = None) -> Trial:
        """A new trial, run to its outcome."""
        return self.execute(self.store.begin(new), kept_s=kept_s)

    def run_once(self, new: NewTrial) -> Trial:
        """The run, from the study's record where it was done before; what was interrupted is run first."""
        while (trial := self.claim()) is not None:
            self.execute(trial)
        return self.store.find(new) or self.run(new)

    def execute(self, trial: Trial, *, kept_s: float | None = None) -> Trial:
        """Runs a trial to its outcome, keeps that, and tells of it.

        Raises as ``TrialExecutor.execute``, and ``StudyMismatchError`` where the script was edited before or meanwhile.
        A contaminated run is repeated where there is time beside ``kept_s``, which is what the proof takes when None.
        Everything is held against the baseline: there time for another run is enough.
        """
        self.tell(TrialStarted(trial, len(self.searched), self.time.left_s))

        def time_to_repeat(seconds: float) -> bool:
            time = self.time
            if trial.phase is Phase.BASELINE:
                return time.fits(2 * seconds)
            return time.fits(
                seconds + (max(time.reserved_s(), time.proof_s(trial.config, seconds)) if kept_s is None else kept_s)
            )

        window = window_of(trial, self.plan, self.best, self.track.slowest_share())
        try:
            self.sources.check(self.knowledge.module_hashes)
            outcome = self.executor.execute(trial, self.knowledge, window, time_for=time_to_repeat)
            self.sources.check(self.knowledge.module_hashes or outcome.knowledge.module_hashes)
        except (Interrupted, StorageError, InfrastructureError, StudyMismatchError):
            self.store.requeue(trial)
            raise
        finished = self.store.finish(trial, outcome)
        self._note_warm_start(finished)
        best, track = self.best, self.track
        self.tell(TrialFinished(finished, track.gain(finished), best, track.gain(best)))
        return finished

    def _note_warm_start(self, trial: Trial) -> None:
        """Says once that a start is charged which production won't have: nobody has seen the cold one."""
        measurement = trial.measurement
        unknown = measurement is not None and measurement.cold_first_step_s is None
        if measurement is None or not unknown or measurement.compile_cache in ("", COLD) or self._noted_warm:
            return
        if self.plan.objective.planned_samples is not None and trial.phase is not Phase.PROBE:
            self._noted_warm = True
            self.note(
                f"trial {trial.number} found {'all that' if measurement.compile_cache == WARM else 'a part of what'} it"
                " compiles in a compile cache, and no start without was seen: --planned-samples charges a start that is"
                " too short"
            )
