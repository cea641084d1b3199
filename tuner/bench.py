"""Where a study's trials are run: counts them, tells of them, and knows the time that is left."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.budget import Budget
from tuner.events import Listener, Noted, TrialFinished, TrialStarted
from tuner.ledger import Ledger
from tuner.model import Config, Phase, Trial
from tuner.plan import StudyPlan
from tuner.runner.base import Interrupted, Window, screen_window
from tuner.scoring import Yardstick
from tuner.storage import Repository

SCREEN_S = 10.0
"""A screen trains for as many samples as the script as written takes in this time."""
FEWEST_SCREEN_STEPS = 60
HOPELESS = 0.6
"""A trial ends early where its rate is sure to stay below this share of the best one's."""
FIRST_TRIAL_S = 30.0
"""A guess of what a trial takes, before any has been run."""


class Bench:
    """What the parts of a study share. ``knowledge`` is what the baseline taught of the script."""

    def __init__(
        self,
        plan: StudyPlan,
        repository: Repository,
        study_id: int,
        ledger: Ledger,
        *,
        tell: Listener,
        stop: threading.Event,
    ) -> None:
        self.plan = plan
        self.repository = repository
        self.study_id = study_id
        self.ledger = ledger
        self.tell = tell
        self.stop = stop
        self.knowledge: Mapping[str, Any] = {}
        self.budget = Budget(plan.trials, plan.budget_s, time.monotonic(), ledger.seconds())

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

    def run(
        self, phase: Phase, config: Config, why: str, *, round_number: int | None = None, seed: int | None = None
    ) -> Trial:
        """A new trial, run to its outcome."""
        return self.conduct(self.ledger.begin(phase, config, why, round_number=round_number, seed=seed))

    def conduct(self, trial: Trial) -> Trial:
        """Runs a trial to its outcome and tells of it."""
        left = self.budget.seconds_left(time.monotonic())
        self.tell(TrialStarted(trial, len(self.searched()), left))
        finished = self.ledger.conduct(trial, self.knowledge, self._window(trial))
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
        """Baseline and anchors get all the time; a screen ends by its samples.

        Others get half of it: a search trial only ranks, and may end once it is hopeless, and in the finals what
        differs from run to run is more than what differs within one, so that more runs say more than longer ones.
        """
        if trial.phase is Phase.SCREEN:
            return screen_window(self.screen_samples())
        if trial.phase in (Phase.BASELINE, Phase.ANCHOR):
            return self.plan.window
        window = replace(self.plan.window, max_s=self.plan.window.max_s / 2)
        best = self.best()
        measurement = best.outcome.measurement if best is not None and best.outcome is not None else None
        if trial.phase is Phase.FINALS or measurement is None or not self.plan.objective.is_rate:
            return window
        return replace(window, hopeless_below=HOPELESS * measurement.samples_per_s)

    def screen_samples(self) -> int:
        """How many samples each run of a screen trains on; the same for all of a study, 0 before the baseline."""
        if self.plan.accuracy.samples is not None:
            return self.plan.accuracy.samples
        baseline = self.baseline()
        measurement = baseline.outcome.measurement if baseline is not None and baseline.outcome is not None else None
        if measurement is None:
            return 0
        per_step = measurement.samples_per_s / measurement.steps_per_s
        wanted = max(measurement.samples_per_s * SCREEN_S, FEWEST_SCREEN_STEPS * per_step)
        # A config may be half as fast, and has to come through in time all the same.
        most_s = max(1.0, self.plan.limits.trial_timeout_s / 2 - measurement.first_step_s)
        return int(min(wanted, measurement.samples_per_s * most_s))

    def note(self, text: str) -> None:
        """Tells people something."""
        self.tell(Noted(text))

    def baseline(self) -> Trial | None:
        """Trial 0, once it is finished."""
        return next((trial for trial in self.trials if trial.phase is Phase.BASELINE), None)

    def searched(self) -> list[Trial]:
        """The finished trials of baseline and search."""
        return [trial for trial in self.trials if trial.phase in (Phase.BASELINE, Phase.SEARCH)]

    def best(self) -> Trial | None:
        """The best of them, which isn't proven by anything."""
        return self.yardstick.best_of(self.searched())

    def trial_s(self) -> float:
        """Seconds that a trial typically takes here."""
        seconds = [trial.outcome.seconds for trial in self.trials if trial.outcome is not None]
        return statistics.median(seconds) if seconds else FIRST_TRIAL_S

    def time_for(self, trials: int) -> bool:
        """Whether so many more trials fit into the budget."""
        left = self.budget.seconds_left(time.monotonic())
        return left is None or left >= trials * self.trial_s()
