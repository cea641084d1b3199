"""Where a study's trials are run: counts them, tells of them, and knows the time that is left."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from tuner.analysis.accuracy import SEEDS
from tuner.analysis.gain import Yardstick
from tuner.child.records import Window
from tuner.events import Listener, Noted, TrialFinished, TrialStarted
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Outcome, Phase, Trial, baseline_of
from tuner.runner.request import Interrupted, probe_window, screen_window
from tuner.space.resolve import ResolvedSpace
from tuner.storage.database import NewTrial, Repository
from tuner.study.budget import FEWEST_ROUNDS, Budget
from tuner.study.execution import Ledger
from tuner.study.plan import StudyPlan

SCREEN_S = 10.0
"""A screen trains for as many samples as the script as written takes in this time."""
FEWEST_SCREEN_STEPS = 60
HOPELESS = 0.6
"""A trial ends early where its rate is sure to stay below this share of the best one's."""
FIRST_TRIAL_S = 30.0
"""A guess of what a trial takes, before any has been run."""


class Bench:
    """What the parts of a study share. ``knowledge`` is what the baseline taught of the script, and so is ``space``."""

    def __init__(
        self,
        plan: StudyPlan,
        repository: Repository,
        study_id: int,
        ledger: Ledger,
        *,
        tell: Listener,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.repository = repository
        self.study_id = study_id
        self.ledger = ledger
        self.tell = tell
        self.stop = stop
        self.knowledge = Knowledge()
        self.space: ResolvedSpace | None = None
        self.clock = clock
        self.budget = Budget(plan.trials, plan.budget_s, clock(), ledger.seconds())

    @property
    def trials(self) -> list[Trial]:
        """The finished trials, of every phase."""
        return self.ledger.trials

    @property
    def yardstick(self) -> Yardstick:
        """The baseline along the study so far."""
        return Yardstick(self.trials, self.plan.objective)

    def waiting(self) -> Trial | None:
        """A trial that was interrupted, to be run before any new one. Raises ``Interrupted`` when stopped."""
        if self.stop.is_set():
            raise Interrupted
        return self.ledger.waiting()

    def run(self, new: NewTrial, *, kept_s: float | None = None) -> Trial:
        """A new trial, run to its outcome."""
        return self.conduct(self.ledger.begin(new), kept_s=kept_s)

    def run_once(self, new: NewTrial) -> Trial:
        """The run, from the study's record where it was done before; what was interrupted is run first."""
        while (trial := self.waiting()) is not None:
            self.conduct(trial)
        return self.recorded(new) or self.run(new)

    def recorded(self, new: NewTrial) -> Trial | None:
        """The finished trial that was the same run, whatever the words for it."""
        return next((trial for trial in self.trials if new.is_run_of(trial)), None)

    def conduct(self, trial: Trial, *, kept_s: float | None = None) -> Trial:
        """Runs a trial to its outcome and tells of it.

        A disturbed one is repeated where there is time beside ``kept_s``, which is what the proof takes when None.
        Everything is held against the baseline: there time for another trial is enough.
        """
        left = self.budget.seconds_left(self.clock())
        self.tell(TrialStarted(trial, len(self.searched()), left))

        def time_to_repeat(seconds: float) -> bool:
            proof_s = max(self.reserved_s(), self.proof_s(trial.config, seconds)) if kept_s is None else kept_s
            return self.time_for(seconds + (seconds if trial.phase is Phase.BASELINE else proof_s))

        finished = self.ledger.conduct(trial, self.knowledge, self._window(trial), time_for=time_to_repeat)
        best = self.best()
        yardstick = self.yardstick
        self.tell(TrialFinished(finished, yardstick.gain(finished), best, yardstick.gain(best)))
        return finished

    def told_earlier(self) -> tuple[TrialFinished, ...]:
        """The trials of an earlier process, each with the best of its time."""
        yardstick, searched = self.yardstick, self.searched()
        told = []
        for trial in self.trials:
            best = yardstick.best_of(one for one in searched if one.number <= trial.number)
            told.append(TrialFinished(trial, yardstick.gain(trial), best, yardstick.gain(best)))
        return tuple(told)

    def _window(self, trial: Trial) -> Window:
        """Baseline and anchors get all the time, a probe a quarter; a screen ends by its samples.

        Others get half of it: a search trial only ranks, and may end once it is hopeless, and in the finals what
        differs from run to run is more than what differs within one, so that more runs say more than longer ones.
        """
        if trial.samples is not None:
            return screen_window(trial.samples)
        if trial.phase is Phase.PROBE:
            return probe_window(self.plan.window)
        if trial.phase in (Phase.BASELINE, Phase.ANCHOR):
            return self.plan.window
        window = replace(self.plan.window, max_s=self.plan.window.max_s / 2)
        best = self.best()
        measurement = best.outcome.measurement if best is not None and best.outcome is not None else None
        if trial.phase is Phase.FINALS or measurement is None or not self.plan.objective.is_rate:
            return window
        return replace(window, hopeless_below=HOPELESS * measurement.rate)

    def screen_samples(self) -> int:
        """How many samples each run of a screen trains on; the same for all of a study, 0 before the baseline."""
        if self.plan.accuracy.samples is not None:
            return self.plan.accuracy.samples
        baseline = self.baseline()
        measurement = baseline.outcome.measurement if baseline is not None and baseline.outcome is not None else None
        if measurement is None:
            return 0
        per_step = measurement.rate / measurement.steps_per_s
        wanted = max(measurement.rate * SCREEN_S, FEWEST_SCREEN_STEPS * per_step)
        # A config may be half as fast, and has to come through in time all the same.
        most_s = max(1.0, self.plan.limits.trial_timeout_s / 2 - measurement.first_step_s)
        return int(min(wanted, measurement.rate * most_s))

    def note(self, text: str) -> None:
        """Tells people something."""
        self.tell(Noted(text))

    def baseline(self) -> Trial | None:
        """Trial 0, once it is finished."""
        return baseline_of(self.trials)

    def searched(self) -> list[Trial]:
        """The finished trials of baseline and search."""
        return [trial for trial in self.trials if trial.phase in (Phase.BASELINE, Phase.SEARCH)]

    def best(self) -> Trial | None:
        """The best of them, which isn't proven by anything."""
        return self.yardstick.best_of(self.searched())

    def trial_s(self) -> float:
        """Seconds that a trial typically takes here; a probe is shorter."""
        trials = [trial for trial in self.trials if trial.phase is not Phase.PROBE]
        seconds = [trial.outcome.seconds for trial in trials if trial.outcome is not None]
        return statistics.median(seconds) if seconds else FIRST_TRIAL_S

    def run_s(self, phase: Phase, config: Config) -> float:
        """Seconds that a run of the config takes in a phase: as it did there, else elsewhere, else as any trial."""
        trials = [t for t in self.trials if t.phase is not Phase.PROBE and t.outcome is not None]
        own = [t for t in trials if t.config == config]
        seconds = [t.outcome.seconds for t in own if t.phase is phase and t.outcome is not None]
        if not seconds:
            seconds = [self._within(t.outcome, self.plan.window.max_s / 2) for t in own if t.outcome is not None]
        return statistics.median(seconds) if seconds else self.trial_s()

    def probe_s(self) -> float:
        """Seconds that a run of the probe would take, by the baseline."""
        baseline = self.baseline()
        outcome = baseline.outcome if baseline is not None else None
        return FIRST_TRIAL_S if outcome is None else self._within(outcome, probe_window(self.plan.window).max_s)

    @staticmethod
    def _within(outcome: Outcome, window_s: float) -> float:
        """Seconds that the run would have taken with so long a window: the baseline gets a longer one than others."""
        blocks = outcome.measurement.blocks if outcome.measurement is not None else ()
        return outcome.seconds - max(0.0, sum(block.seconds for block in blocks) - window_s)

    def finals_s(self, config: Config, rounds: int, run_s: float = 0.0) -> float:
        """Seconds that so many rounds of the config and the baseline take, where one of the config takes ``run_s``."""
        return rounds * (self.run_s(Phase.FINALS, BASELINE) + max(run_s, self.run_s(Phase.FINALS, config)))

    def needs_screen(self, config: Config) -> bool:
        """Whether a config turns a knob that changes more than speed, and what it changes is to be looked at."""
        knobs = self.space.space.knobs if self.space is not None and self.plan.accuracy.any else ()
        return any(knob.tier > 1 for knob in knobs if knob.name in config)

    def reserved_s(self) -> float:
        """Seconds kept for the proof: of the best so far, or of a later find where that one's has no time any more.

        Where no proof fits into what is left, the search may have it all.
        """
        best = self.best()
        if best is not None and best is not self.baseline() and self.time_for(self.proof_s(best.config)):
            return self.budget.reserved_s(self.proof_s(best.config), found=True)
        axes = self.space.axes if self.space is not None else ()
        proof_s = self.proof_s(Config({axis.knob.name: axis.values[0] for axis in axes}))
        return self.budget.reserved_s(proof_s, found=False) if self.time_for(proof_s) else 0.0

    def search_s(self) -> float | None:
        """Seconds left for searching, beside what is kept for the proof; None without a budget."""
        left = self.budget.seconds_left(self.clock())
        return None if left is None else max(0.0, left - self.reserved_s())

    def proof_s(self, config: Config, run_s: float = 0.0) -> float:
        """Seconds that a proof takes at least: the screen where one is due, and the fewest rounds of the finals."""
        proof_s = self.finals_s(config, FEWEST_ROUNDS, run_s)
        if self.needs_screen(config):
            proof_s += SEEDS * (self.run_s(Phase.SCREEN, BASELINE) + self.run_s(Phase.SCREEN, config))
        return proof_s

    def time_for(self, seconds: float) -> bool:
        """Whether so much fits into what is left of the budget."""
        left = self.budget.seconds_left(self.clock())
        return left is None or left >= seconds
