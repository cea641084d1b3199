"""What is left of a study's trials and seconds, and what its runs will take. Pure: the clock is read elsewhere."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.analysis.accuracy import SEEDS
from tuner.analysis.gain import BaselineTrack
from tuner.analysis.larger_batches import USUAL_NOISE, likely_efficiency
from tuner.analysis.turns import TOLD_TO, noise_within, rounds_to_tell
from tuner.child.records import Window
from tuner.knowledge import batch_factor, samples_per_step
from tuner.model import BASELINE, SIDELINES, Config, Outcome, Phase, Trial, baseline_of
from tuner.runner.request import probe_window
from tuner.space.resolve import ResolvedSpace
from tuner.study.lengths import WARMUP_S, screen_lengths, window_s
from tuner.study.plan import StudyPlan

FINALS_SHARE = 0.2
LARGEST_SHARE_UNFOUND = 0.5
"""Of the budget is kept for a proof at most, as long as nothing is found that could be proven."""
APART = 1.6
"""Rounds of the finals are off by so many times what turns in the search say, since processes differ, too: 0.065 and
0.061 against 0.051 and 0.038 in two studies of studies/digits on two cores (November 2026)."""
FEWEST_TOLD = 3
"""The noise is known once so many trials have told of it."""
LARGE = 1 + 2 * TOLD_TO
"""A smaller gain is told well enough by the usual rounds."""
LARGEST_SHARE_FOUND = 0.7
"""Of the budget is kept for the usual rounds of the finals at most, if they are more than the fewest."""
LARGEST_SHARE_RANKED, LARGEST_SHARE_UNRANKED = 0.55, 0.35
"""Of the budget is kept for more than the usual rounds at most: where a rotation has ranked the knobs, and where none
has. Then another trial may well find more than what those rounds would tell better.
"""
FEWEST_ROUNDS = 3
"""Finals of fewer rounds prove nothing."""
ADDED_ROUNDS = 1.5
"""Undecided finals are given so many times the rounds that they were planned with."""
HOPE = 0.75
"""With that share left of what a proof is foreseen to take it is tried by turns, where no other candidate's is sure to
fit: nothing else would use the time, and what is foreseen before a first round was run is rather too long."""
SLOWER = 1.15
"""What comes between steps is no part of a rate, such as validation, and takes its time all the same."""
FIRST_TRIAL_S = 30.0
"""A guess of what a trial takes, before any has been run."""


@dataclass(frozen=True)
class Budget:
    """``trials`` bounds baseline and search, ``seconds`` the whole study; None is unbounded.

    ``started`` is the clock at the start of this process, ``spent_s`` what earlier processes used.
    """

    trials: int | None
    seconds: float | None
    started: float
    spent_s: float = 0.0
    finals_share: float = FINALS_SHARE

    def elapsed(self, now: float) -> float:
        """Seconds used so far by all processes of the study."""
        return self.spent_s + now - self.started

    def seconds_left(self, now: float) -> float | None:
        """Seconds left for everything, never negative."""
        return None if self.seconds is None else max(0.0, self.seconds - self.elapsed(now))

    def reserved_s(self, proof_s: float, *, found: bool) -> float:
        """Seconds kept for the proof: the finals' share, or ``proof_s`` where a proof takes more at least.

        ``found``: whether there is something to prove. A search that has found nothing yet keeps half at most.
        """
        if self.seconds is None:
            return 0.0
        most = self.seconds if found else LARGEST_SHARE_UNFOUND * self.seconds
        return max(self.finals_share * self.seconds, min(proof_s, most))

    def search_is_over(self, now: float, trials_done: int, trial_s: float, reserved_s: float) -> str:
        """Why no further search trial may start, or "". ``trial_s`` is what one typically takes.

        One config at least is tried where there is any time for it, even if none is left to prove it.
        """
        if self.trials is not None and trials_done >= self.trials:
            return f"all {self.trials} trials are done" if self.trials > 1 else "its one trial is done"
        left = self.seconds_left(now)
        kept = reserved_s if trials_done > 1 else 0.0
        if left is not None and left - kept < trial_s:
            return f"the time for searching is used up ({self.seconds:.0f} s in all)"
        return ""

    def finals_fit(self, now: float, runs_s: Sequence[float], rounds: int) -> tuple[int, int]:
        """How many finalists and rounds fit, (0, 0) where fewer than three rounds of one do: they would prove nothing.

        ``runs_s`` is what a run takes: the baseline's, then each finalist's, best first. Rounds narrow the interval,
        finalists only widen the choice: finalists go first.
        """
        left = self.seconds_left(now)
        finalists = len(runs_s) - 1
        if finalists < 1 or rounds < 1:
            return 0, 0
        if left is None:
            return finalists, rounds
        choices = [(count, rounds) for count in range(finalists, 1, -1)]
        choices += [(1, count) for count in range(rounds, min(FEWEST_ROUNDS, rounds) - 1, -1)]
        for candidates, count in choices:
            if count * sum(runs_s[: candidates + 1]) <= left:
                return candidates, count
        return 0, 0


@dataclass(frozen=True)
class StudyTime:
    """What is left of a study's time at ``now``, and the seconds that its runs will take by those that were run.

    ``trials`` are the finished ones of every phase; ``space`` is None before the search space is known. ``by_turns``:
    whether trials take turns.
    """

    plan: StudyPlan
    budget: Budget
    now: float
    trials: Sequence[Trial]
    space: ResolvedSpace | None
    by_turns: bool = False

    @property
    def left_s(self) -> float | None:
        """Seconds left for everything; None without a budget."""
        return self.budget.seconds_left(self.now)

    def fits(self, seconds: float) -> bool:
        """Whether so much fits into what is left."""
        return self.left_s is None or self.left_s >= seconds

    def may_fit(self, proof_s: float) -> bool:
        """Whether a proof of the fewest rounds that is foreseen to take so long may come off in what is left: as
        ``is_sure_to_fit`` once a round of finals has shown what one takes.
        """
        was_run = any(trial.phase is Phase.FINALS for trial, _ in self._runs())
        return self.is_sure_to_fit(proof_s) or (self.by_turns and not was_run and self.fits(HOPE * proof_s))

    def is_sure_to_fit(self, proof_s: float) -> bool:
        """As ``may_fit``, if it takes as long as foreseen. By turns the last round may end with half its turns."""
        return self.fits(proof_s - window_s(self.plan, Phase.FINALS, by_turns=True) if self.by_turns else proof_s)

    def trial_s(self) -> float:
        """What a trial typically takes here; a probe is shorter."""
        seconds = [outcome.seconds for _, outcome in self._runs()]
        return statistics.median(seconds) if seconds else FIRST_TRIAL_S

    def run_s(self, phase: Phase, config: Config) -> float:
        """What a run of the config takes in a phase: as it did there, else elsewhere, else as any trial.

        In the finals it starts fresh, as the script as written has, and may not have in the search.
        """
        own = [(trial, outcome) for trial, outcome in self._runs() if trial.config == config]
        seconds = [outcome.seconds for trial, outcome in own if trial.phase is phase]
        if not seconds:
            seconds = [self._finals_run_s(outcome) for _, outcome in own]
            baseline = baseline_of(self.trials)
            if seconds and phase is Phase.FINALS and self.by_turns and baseline is not None and baseline.outcome:
                seconds = [max(statistics.median(seconds), self._finals_run_s(baseline.outcome))]
        return statistics.median(seconds) if seconds else self.trial_s()

    def _finals_run_s(self, outcome: Outcome) -> float:
        """What the run would have taken in the finals, by turns with their shorter warm-up."""
        measurement = outcome.measurement
        alone = measurement is not None and measurement.reference is None and not measurement.turns
        longer_s = max(0.0, self.plan.window.warmup_s - WARMUP_S) if self.by_turns and alone else 0.0
        longest_s = window_s(self.plan, Phase.FINALS, by_turns=self.by_turns)
        return _within(outcome, longest_s, by_turns=self.by_turns) - longer_s

    def screen_s(self, config: Config, samples: int) -> float:
        """What a run of a screen over so many samples takes: as it did, else as another run did, by the rate.

        It starts as the trials of the search do, which take less for that than the baseline's own run.
        """
        runs = [(trial, outcome) for trial, outcome in self._runs() if trial.config == config]
        seconds = [o.seconds for trial, o in runs if trial.phase is Phase.SCREEN and trial.samples == samples]
        if not seconds:
            most_s = math.inf if config else self._start_in_search_s()
            seconds = [
                min(_beside_window_s(outcome, self.plan.window), most_s) + SLOWER * samples / outcome.measurement.rate
                for _, outcome in runs if outcome.measurement is not None
            ]  # fmt: skip
        return statistics.median(seconds) if seconds else self.trial_s()

    def _start_in_search_s(self) -> float:
        """What trials of the search take beside their windows; infinite before the first one."""
        searched = [outcome for trial, outcome in self._runs() if trial.phase is Phase.SEARCH and outcome.complete]
        start_s = [_beside_window_s(outcome, self.plan.window) for outcome in searched]
        return statistics.median(start_s) if start_s else math.inf

    def probe_s(self) -> float:
        """What a run of the probe would take, by the baseline."""
        baseline = baseline_of(self.trials)
        outcome = baseline.outcome if baseline is not None else None
        return FIRST_TRIAL_S if outcome is None else _within(outcome, probe_window(self.plan.window).max_s)

    def finals_s(self, config: Config, rounds: int, run_s: float = 0.0) -> float:
        """What so many rounds of the config and the baseline take, where one of the config takes at least ``run_s``."""
        return rounds * (self.run_s(Phase.FINALS, BASELINE) + max(run_s, self.run_s(Phase.FINALS, config)))

    def proof_s(self, config: Config, run_s: float = 0.0, rounds: int = FEWEST_ROUNDS) -> float:
        """What a proof takes: the screen where one is due, and rounds of the finals, the fewest at least."""
        proof_s = self.finals_s(config, rounds, run_s)
        if self.needs_screen(config):
            samples = screen_lengths(self.plan, baseline_of(self.trials), larger_step(config, self.space))[0]
            proof_s += SEEDS * (self.screen_s(BASELINE, samples) + self.screen_s(config, samples))
        return proof_s

    def needs_screen(self, config: Config) -> bool:
        """Whether a config turns a knob that changes more than speed, and what it changes is to be looked at."""
        knobs = self.space.space.knobs if self.space is not None and self.plan.accuracy.any else ()
        return any(knob.tier > 1 for knob in knobs if knob.name in config)

    def reserved_s(self) -> float:
        """Kept for the proof: of the best trial so far, or of a later one where there is no time for that any more.

        Where no proof fits into what is left, the search may have it all.
        """
        best = self._best()
        larger_s = self._larger_proof_s()
        if best is not None and best.phase is not Phase.BASELINE:
            ranked = any(trial.phase is Phase.ROTATION and trial.measurement is not None for trial in self.trials)
            to_tell = LARGEST_SHARE_RANKED if ranked else LARGEST_SHARE_UNRANKED
            # Three rounds prove a large gain, and tell roughly how large it is.
            for rounds in range(max(self.rounds_to_tell(), FEWEST_ROUNDS), FEWEST_ROUNDS - 1, -1):
                proof_s = self.proof_s(best.config, rounds=rounds)
                share = LARGEST_SHARE_FOUND if rounds <= self.plan.finals_rounds else to_tell
                most_s = share * (self.budget.seconds or math.inf)
                if rounds == FEWEST_ROUNDS or (proof_s <= most_s and self.fits(proof_s)):
                    break
            both_s = proof_s + larger_s
            if self.fits(proof_s):
                return self.budget.reserved_s(both_s if self.fits(both_s) else proof_s, found=True)
        if larger_s and self.fits(larger_s):
            return self.budget.reserved_s(larger_s, found=True)
        axes = self.space.axes if self.space is not None else ()
        proof_s = self.proof_s(Config({axis.knob.name: axis.values[0] for axis in axes}))
        return self.budget.reserved_s(proof_s, found=False) if self.fits(proof_s) else 0.0

    def rounds_to_tell(self) -> int:
        """The rounds of finals that tell the best gain so far well, by what trials said of the noise by turns.

        As many as the plan has where too few of them say it, and where the gain is small: then searching is worth more.
        The most there may be where even those wouldn't do.
        """
        usual, window = self.plan.finals_rounds, window_s(self.plan, Phase.FINALS, by_turns=True)
        measured = [outcome.measurement for trial, outcome in self._runs() if trial.phase is Phase.SEARCH]
        noises = [noise_within(measurement, window) for measurement in measured if measurement is not None]
        known = [noise for noise in noises if noise is not None]
        best = self._best()
        gain = BaselineTrack(self.trials, self.plan.objective).gain(best)
        if not self.by_turns or len(known) < FEWEST_TOLD or (gain or 1.0) < LARGE:
            return usual
        return rounds_to_tell(APART * statistics.median(known), usual, self.plan.most_rounds) or self.plan.most_rounds

    def proof_is_worth_more(self, expected: float) -> bool:
        """Whether the seconds of a trial that is expected to gain so much more are better kept for the proof.

        That is so where the finals may need them, with the rounds that are added while they are undecided, and bring
        the gain that was found at a higher rate than the search another one. A gain that isn't proven is none; that of
        a larger effective batch is another contest's.
        """
        track = BaselineTrack(self.trials, self.plan.objective)
        best = self._best()
        gain = track.gain(best)
        if self.left_s is None or best is None or gain is None or gain <= 1.0:
            return False
        proof_s = self.proof_s(best.config, rounds=max(self.rounds_to_tell(), FEWEST_ROUNDS))
        is_scarce = self.left_s - self.trial_s() < ADDED_ROUNDS * proof_s
        return is_scarce and math.log(expected) / self.trial_s() < math.log(gain) / proof_s

    def _best(self) -> Trial | None:
        """The best trial of those that keep the effective batch."""
        return BaselineTrack(self.trials, self.plan.objective).best_of(keeping_batch(searched(self.trials), self.space))

    def _larger_proof_s(self) -> float:
        """What proving the fastest larger batch takes; 0 where that isn't likely to reach a loss sooner than what keeps
        the effective one.
        """
        track, space = BaselineTrack(self.trials, self.plan.objective), self.space
        larger = [trial for trial in searched(self.trials) if space is not None and space.is_larger(trial.config)]
        best, gain = track.best_of(larger), track.gain(self._best()) or 1.0
        if best is None or space is None:
            return 0.0
        likely = (track.gain(best) or 0.0) * likely_efficiency(batch_factor(best.config, space.knowledge), USUAL_NOISE)
        return self.proof_s(best.config) if likely > gain else 0.0

    def search_s(self) -> float | None:
        """Left for searching, beside what is kept for the proof; None without a budget."""
        return None if self.left_s is None else max(0.0, self.left_s - self.reserved_s())

    def search_is_over(self) -> str:
        """Why no further search trial may start by the budget, or ""."""
        done = len(searched(self.trials))
        return self.budget.search_is_over(self.now, done, self.trial_s(), self.reserved_s())

    def _runs(self) -> list[tuple[Trial, Outcome]]:
        """Those that ran the whole loop."""
        return [(t, t.outcome) for t in self.trials if t.phase not in SIDELINES and t.outcome is not None]


def searched(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of baseline and search: those that ``--trials`` counts."""
    return [trial for trial in trials if trial.phase in (Phase.BASELINE, Phase.SEARCH)]


def keeping_batch(trials: Sequence[Trial], space: ResolvedSpace | None) -> list[Trial]:
    """Those whose configs keep the effective batch: larger ones are a contest apart. All before a space is known."""
    return [trial for trial in trials if space is None or not trial.config or space.keeps_batch(trial.config)]


def larger_step(config: Config, space: ResolvedSpace | None) -> int:
    """The samples of a step of a config with a larger effective batch; 0 of others."""
    if space is None or not space.is_larger(config):
        return 0
    return samples_per_step({**space.knowledge.as_written, **config})


def _beside_window_s(outcome: Outcome, window: Window) -> float:
    """Seconds of a run without its window, what the script as written had of it, and without its warm-up."""
    measurement = outcome.measurement
    own_s = sum(block.seconds for block in measurement.blocks) if measurement is not None else 0.0
    beside = measurement is not None and measurement.reference is not None
    return max(0.0, outcome.seconds - SLOWER * own_s * (2 if beside else 1) - (WARMUP_S if beside else window.warmup_s))


def _within(outcome: Outcome, longest_s: float, *, by_turns: bool = False) -> float:
    """Seconds that the run would have taken with so long a window: the baseline gets a longer one than others.

    By turns windows aren't shorter for being precise, and each turn has its lead-in; what the script as written had
    beside the trial is no part of it.
    """
    measurement = outcome.measurement
    own_s = sum(block.seconds for block in measurement.blocks) if measurement is not None else 0.0
    if not by_turns:
        return outcome.seconds - max(0.0, own_s - longest_s)
    beside_s = own_s if measurement is not None and measurement.reference is not None else 0.0
    return max(0.0, outcome.seconds - own_s - beside_s) + SLOWER * longest_s
