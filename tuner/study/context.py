"""What the phases of a study share: its plan, its trials, its time, and what was learned of the script so far."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

from tuner.analysis.accuracy import Screened
from tuner.analysis.bottleneck import Bottleneck
from tuner.analysis.cold_start import COLD, WARM
from tuner.analysis.comparison import failed_in
from tuner.analysis.gain import BaselineTrack
from tuner.analysis.race import Race
from tuner.analysis.tiers import Tiers, holds
from tuner.analysis.turns import scatter_of
from tuner.devices.frameworks import JAX, TENSORFLOW
from tuner.devices.host import host_memory
from tuner.errors import InfrastructureError, StorageError, StudyMismatchError
from tuner.events import Listener, Noted, TrialFinished, TrialStarted
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, SIDELINES, Config, Outcome, OutcomeKind, Phase, Trial, baseline_of
from tuner.runner.request import Interrupted
from tuner.search.rotation import compiled, loads, next_rotation
from tuner.space.arguments import Placeholder
from tuner.space.resolved import ResolvedSpace
from tuner.storage.database import NewTrial, Repository, StudyRecord
from tuner.study.budget import Budget
from tuner.study.execution import TrialExecutor
from tuner.study.lengths import (
    MOST_COMPILED,
    Foreseen,
    foreseen,
    rotation_window,
    turn_length_s,
    usual_step_s,
    window_of,
)
from tuner.study.plan import StudyPlan
from tuner.study.sources import Sources
from tuner.study.study_time import StudyTime, keeping_batch, needs_screen, searched
from tuner.study.trials import TrialStore

SHARE_TOGETHER = 0.8
"""Of the memory that is available, which trials may take that are alive at once."""
ROTATION_SHARE = 0.5
"""Of the time for searching, after which a rotation is ended: nobody knows how slow its slowest config is."""
TAKE_AHEAD = frozenset({JAX, TENSORFLOW})
"""Of a device's own memory these take most before they need it: a second process has what is left."""
AFTER_DEADLINE_S = 3.0
"""A baseline that the study's time ends does so by its own limit: that says how far it came."""
GROWS = "memory_growth"
"""TensorFlow's knob, by which it takes what it needs."""
FITTED = "keras"
"""The framework whose own loop is told of the switches of a rotation; other trainers aren't."""


@dataclass
class StudyContext:
    """One study while it runs. ``tell`` gets its events, ``clock`` gives seconds, ``stop`` is set to end it.

    ``resumed``: whether an earlier process has measured the baseline. The fields with defaults are filled in by the
    phases: what the baseline shows of the script, the search space, what holds the script up, how candidates learned,
    the candidates that are fit for the finals, best first, and the seconds that are kept for what comes after.
    ``races``: whether a search trial may end early that is sure to stay behind the best one. ``rejected``: what screens
    have rejected, as ``rejects`` takes it, and ``unshown`` what they leave open of several configs, or of any where
    nothing else was left: ``untold`` where that is all that needs a screen. ``too_slow``: larger batches that their own
    screens reject, or leave open with no more to come. ``passed_over``: the candidates that were
    told to have none.
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
    races: bool = True
    rejected: tuple[Config, ...] = ()
    unshown: tuple[Config, ...] = ()
    untold: bool = False
    too_slow: frozenset[Config] = frozenset()
    passed_over: frozenset[Config] = frozenset()
    sources: Sources = field(init=False)
    set_aside_s: float = 0.0
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
        by_turns, budget = not self.executor.obstacle, self.budget
        if self.set_aside_s and budget.seconds is not None:
            budget = replace(budget, seconds=budget.seconds - self.set_aside_s)
        turn_s = turn_length_s(self.plan, self.knowledge)
        return StudyTime(
            self.plan, budget, self.clock(), self.trials, self.space, by_turns, turn_s, self._may_be_alive, self.gone,
            self.too_slow,
        )  # fmt: skip

    @property
    def tiers(self) -> Tiers:
        """What each knob of the space may change, and so each config."""
        knobs = self.space.space.knobs if self.space is not None else ()
        return Tiers({knob.name: knob.tier for knob in knobs}, self.knowledge)

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
        """The best of those that keep the effective batch, which isn't proven by anything."""
        return self.track.best_of(keeping_batch(self.searched, self.space))

    @property
    def larger(self) -> list[Trial]:
        """The finished trials of the search with a larger effective batch."""
        return [trial for trial in self.searched if self.space is not None and self.space.is_larger(trial.config)]

    @property
    def leading(self) -> Trial | None:
        """The best of those that keep the effective batch and may be candidates."""
        gone = self.gone
        return self.track.best_of(t for t in keeping_batch(self.searched, self.space) if not gone(t.config))

    def rival(self, config: Config) -> Trial | None:
        """The best trial so far of the contest that the config is in; of the other one where there is none yet."""
        larger = self.space is not None and self.space.is_larger(config)
        return (self.track.best_of(self.larger) if larger else None) or self.leading

    def rejects(self, config: Config) -> bool:
        """Whether the config turns all that a screen has ``rejected`` of one, or left ``unshown``, or needs one where
        all are ``untold``.
        """
        barred = any(holds(config, part) for part in (*self.rejected, *self.unshown))
        return barred or (self.untold and needs_screen(config, self.plan, self.space))

    @property
    def gone(self) -> Callable[[Config], bool]:
        """Whether a config is a candidate no more: screens reject it, or a run of it failed in the finals."""
        failed = frozenset(failed_in(self.trials, self.plan.objective))
        return lambda config: config in failed or self.rejects(config)

    def note(self, text: str) -> None:
        """Tells people something."""
        self.tell(Noted(text))

    def claim(self, *, finals: bool = False) -> Trial | None:
        """A trial that was interrupted, to be run before any new one; one of the finals only where it is asked for.

        Raises ``Interrupted`` when stopped.
        """
        if self.stop.is_set():
            raise Interrupted
        return self.store.claim(finals=finals)

    def run(self, new: NewTrial) -> Trial:
        """A new trial, run to its outcome."""
        return self.execute(self.store.begin(new))

    def run_once(self, new: NewTrial) -> Trial:
        """The run, from the study's record where it was done before; what was interrupted is run first."""
        while (trial := self.claim()) is not None:
            self.execute(trial)
        return self.store.find(new) or self.run(new)

    def run_screen(self, new: NewTrial, *, kept_s: float) -> Trial | None:
        """The run of a screen, from the study's record where it was done before; None where it was ended since no more
        than ``kept_s`` were left: then it waits for more time. Raises as ``execute``.
        """
        if self.stop.is_set():
            raise Interrupted
        found = self.store.find(new)
        if found is not None:
            return found
        left_s = self.time.left_s
        ends_by = math.inf if left_s is None else monotonic() + max(0.0, left_s - kept_s)
        return next(iter(self._execute(self.store.begin(new), ends_by)), None)

    def execute(self, trial: Trial) -> Trial:
        """Runs a trial to its outcome, keeps that, and tells of it.

        Raises as ``TrialExecutor.execute``, and ``StudyMismatchError`` where the script was edited before or meanwhile.
        A contaminated run is repeated where there is time beside what the proof takes. Everything is held against the
        baseline: there time for another run is enough. In the search, trials take turns with the script as written
        where they can.
        """
        return self._execute(trial, self._ends_by(trial))[0]

    def _execute(self, trial: Trial, ends_by: float) -> list[Trial]:
        """The trial, run to its outcome by that moment; empty where it waits for more time, as ``_kept`` has it."""

        def time_to_repeat(seconds: float) -> bool:
            time = self.time
            if trial.phase is Phase.BASELINE:
                return time.fits(2 * seconds)
            return time.fits(seconds + max(time.reserved_s(), time.proof_s(trial.config, seconds)))

        turns = trial.phase in (Phase.SEARCH, Phase.ANCHOR) and self._may_be_alive([BASELINE, trial.config])
        configs = self._configs_by_turns(trial)
        shorter = turns or (trial.phase is Phase.BASELINE and not self.executor.obstacle)
        rival = self.rival(trial.config) if self.races else None
        window = window_of(
            trial, self.plan, rival, self.track.slowest_share(), by_turns=shorter, turn_s=self._turn_s([trial])
        )
        if configs:
            loaders = self._load(configs)
            window = rotation_window(self.plan, baseline_of(self.trials), len(configs), loads=loaders)
        rates = self.plan.objective.is_rate and trial.phase is Phase.SEARCH
        raced = [each.measurement for each in self.searched if each.phase is Phase.SEARCH and each.measurement]
        race = Race(self.track.gain(rival) if rates else None, scatter_of(raced)) if turns else None
        left_s = math.inf if self.time.left_s is None else self.time.left_s
        return self._kept(
            [trial],
            lambda: [
                self.executor.execute(
                    trial, self.knowledge, window, time_for=time_to_repeat, race=race, ends_by=ends_by,
                    rotation=configs, left_s=left_s,
                )
            ],
        )

    def _configs_by_turns(self, trial: Trial) -> tuple[Config, ...]:
        """Those of a rotation; of one that was interrupted the same ones, but for what there is no more time for."""
        if trial.phase is not Phase.ROTATION or self.space is None:
            return ()
        return self.next_rotated([each for each in self.trials if each.number < trial.number])

    def next_rotated(self, trials: Sequence[Trial]) -> tuple[Config, ...]:
        """The configs of the rotation that comes after these trials: as many as there is time for, of those that turn a
        compiler only a few. Keras' loop compiles each of them.
        """
        if self.space is None:
            return ()
        time_s = self.time.search_s()

        def fits(configs: Sequence[Config]) -> bool:
            time = self.rotation_time(configs)
            return time is None or time.is_within(self.plan, time_s)

        return next_rotation(self.space, trials, None if self._is_fitted else MOST_COMPILED, fits)

    def rotation_time(self, configs: Sequence[Config]) -> Foreseen | None:
        """What a rotation of these takes; None before the script as written was measured."""
        space, baseline = self.space, self.baseline.measurement if self.baseline is not None else None
        if space is None or baseline is None:
            return None
        return foreseen(
            self.plan, baseline, len(configs), compiled=compiled(space, configs), loads=loads(space, configs),
            fitted=self._is_fitted,
        )  # fmt: skip

    @property
    def _is_fitted(self) -> bool:
        """Whether the script trains in Keras' own loop."""
        return self.knowledge.framework == FITTED

    def _ends_by(self, trial: Trial) -> float:
        """The moment by which a trial has to be through: of the search and a rotation so that others have their time,
        of what comes before them the end of the study's. What proves is given its own.

        Nobody knows what it takes to compile a config. It has as long as a usual trial in any case.
        """
        time = self.time
        if time.left_s is None or trial.phase in (Phase.SCREEN, Phase.FINALS):
            return math.inf
        if trial.phase in (Phase.BASELINE, Phase.PROBE):
            return monotonic() + time.left_s + AFTER_DEADLINE_S
        if trial.phase is Phase.ROTATION:
            return monotonic() + ROTATION_SHARE * (time.search_s() or 0.0)
        most_s = max(time.left_s - time.reserved_s(), time.runs.trial_s())
        return monotonic() + min(time.left_s, most_s)

    def execute_round(self, trials: Sequence[Trial], *, kept_s: float) -> list[Trial]:
        """As ``execute``, of the runs of a round of the finals, which take turns with each other where they can.

        A contaminated round is run again where there is time beside ``kept_s``. Empty where the time was up before they
        were measured: they wait for more.
        """
        together = len(trials) > 1 and self._may_be_alive([trial.config for trial in trials])
        window = window_of(
            trials[0], self.plan, self.best, by_turns=together, turn_s=self._turn_s(trials),
            step_s=usual_step_s(self.baseline),
        )  # fmt: skip
        left_s = self.time.left_s
        return self._kept(
            trials,
            lambda: self.executor.execute_round(
                trials, self.knowledge, window, time_for=lambda seconds: self.time.fits(seconds + kept_s),
                together=together, ends_by=monotonic() + left_s if left_s is not None else math.inf,
            ),
        )  # fmt: skip

    def _turn_s(self, trials: Sequence[Trial]) -> float:
        """How long turns of these trials are."""
        return turn_length_s(self.plan, self.knowledge, loads=self._load([trial.config for trial in trials]))

    def _load(self, configs: Sequence[Config]) -> bool:
        """Whether any of the configs turns a knob of the loader."""
        return self.space is not None and loads(self.space, configs)

    def _may_be_alive(self, configs: Sequence[Config]) -> bool:
        """Whether trials take turns here, and machine and device have the memory that these took, all at once.

        One that wasn't run yet takes as much as the script as written.
        """
        if self.executor.obstacle or self.baseline is None:
            return False
        most, known = self.plan.limits.max_device_bytes, self.knowledge
        grow = all(config.get(GROWS, known.as_written.get(GROWS)) is True for config in configs)
        if most is not None and not grow and (known.backend or known.framework) in TAKE_AHEAD:
            return False
        peaks, on_device = dict[Config, int](), dict[Config, int]()
        for trial in self.trials:
            # All of a rotation's configs were at home in its process, and the weights twice.
            if trial.measurement is not None and trial.phase is not Phase.ROTATION:
                peaks[trial.config] = max(peaks.get(trial.config, 0), trial.measurement.peak_host_bytes)
                taken = trial.measurement.peak_device_bytes or 0
                on_device[trial.config] = max(on_device.get(trial.config, 0), taken)
        if most is not None and _together(on_device, configs) > most:
            return False
        return _together(peaks, configs) <= SHARE_TOGETHER * (host_memory()[1] + self.executor.kept_bytes)

    def _kept(self, trials: Sequence[Trial], run: Callable[[], list[Outcome]]) -> list[Trial]:
        """The trials with their outcomes, which are stored, and told of; empty where the time was up before what proves
        was measured: that waits for more.
        """
        for trial in trials:
            self.tell(TrialStarted(trial, len(self.searched), self.time.left_s))
        try:
            self.sources.check(self.knowledge.module_hashes)
            outcomes = run()
            self.sources.check(self.knowledge.module_hashes or outcomes[0].knowledge.module_hashes)
        except (Interrupted, KeyboardInterrupt, StorageError, InfrastructureError, StudyMismatchError):
            for trial in trials:
                self.store.requeue(trial)
            raise
        is_late = any(outcome.kind is OutcomeKind.UNFINISHED for outcome in outcomes)
        if is_late and trials[0].phase in (Phase.SCREEN, Phase.FINALS):
            for trial in trials:
                self.store.requeue(trial)
            return []
        return [self._finish(trial, outcome) for trial, outcome in zip(trials, outcomes, strict=True)]

    def _finish(self, trial: Trial, outcome: Outcome) -> Trial:
        finished = self.store.finish(trial, outcome)
        self._note_warm_start(finished)
        best, track = self.leading, self.track
        self.tell(TrialFinished(finished, track.gain(finished), best, track.gain(best)))
        return finished

    def _note_warm_start(self, trial: Trial) -> None:
        """Says once that a start is charged which production won't have: nobody has seen the cold one."""
        measurement = trial.measurement
        unknown = measurement is not None and measurement.cold_first_step_s is None
        if measurement is None or not unknown or measurement.compile_cache in ("", COLD) or self._noted_warm:
            return
        if self.plan.objective.planned_samples is not None and trial.phase not in SIDELINES:
            self._noted_warm = True
            self.note(
                f"trial {trial.number} found {'all that' if measurement.compile_cache == WARM else 'a part of what'} it"
                " compiles in a compile cache, and no start without was seen: --planned-samples charges a start that is"
                " too short"
            )


def _together(peaks: Mapping[Config, int], configs: Sequence[Config]) -> int:
    """Bytes that these take; one that wasn't run yet as many as the script as written."""
    return sum(peaks.get(config, peaks.get(BASELINE, 0)) for config in configs)
