"""What is left of a study's time, and what of it is kept for which proof. Pure: the clock is read elsewhere."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tuner.analysis.accuracy import SEEDS
from tuner.analysis.comparison import failed_in
from tuner.analysis.gain import WORTH_HAVING, BaselineTrack
from tuner.analysis.larger_batches import USUAL_NOISE, likely_efficiency
from tuner.analysis.learning import gives_no_loss
from tuner.analysis.turns import TOLD_TO, noise_within, rounds_to_tell
from tuner.formatting import config_text
from tuner.knowledge import batch_factor, samples_per_step
from tuner.model import BASELINE, Config, OutcomeKind, Phase, Trial, baseline_of
from tuner.search.history import History
from tuner.search.rotation import loader_knobs
from tuner.space.resolved import ResolvedSpace
from tuner.study.budget import FEWEST_ROUNDS, Budget
from tuner.study.lengths import screen_lengths, screened_samples, window_s
from tuner.study.plan import StudyPlan
from tuner.study.run_times import RunTimes, Together, any_together, compiled_setting

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
"""Of the budget is kept for more than the usual rounds, or for larger batches beside them, at most: where a rotation
has ranked the knobs, and where none has. Then another trial may well find more than what those would tell.
"""
ADDED_ROUNDS = 1.5
"""Undecided finals are given so many times the rounds that they were planned with."""
FEWEST_BEFORE_LONG = 2
"""Trials, the baseline among them: a user who lets a study turn a compiler only has it tried."""
LONGER_THAN_FORESEEN = 1.1
"""So many times what three rounds are foreseen to take is kept: where they take a little longer nothing is proven."""
HOPE = 0.75
"""With that share left of what a proof is foreseen to take it is tried by turns, where no other candidate's is sure to
fit: nothing else would use the time, and what is foreseen before a first round was run is rather too long."""


@dataclass(frozen=True)
class StudyTime:
    """What is left of a study's time at ``now``, and the seconds that its runs will take by those that were run.

    Time for a proof is kept for nothing that is ``gone``: that is a candidate no more; nor for a larger batch that is
    ``too_slow`` by its own screen.
    ``trials`` are the finished ones of every phase; ``space`` is None before the search space is known. ``by_turns``:
    whether trials take turns where they may be alive ``together``, and ``turn_s`` how long these are where no config
    has another loader.
    """

    plan: StudyPlan
    budget: Budget
    now: float
    trials: Sequence[Trial]
    space: ResolvedSpace | None
    by_turns: bool = False
    turn_s: float | None = None
    together: Together = any_together
    gone: Callable[[Config], bool] = lambda config: False
    too_slow: frozenset[Config] = frozenset()

    @property
    def left_s(self) -> float | None:
        """Seconds left for everything; None without a budget."""
        return self.budget.seconds_left(self.now)

    def fits(self, seconds: float) -> bool:
        """Whether so much fits into what is left."""
        return self.left_s is None or self.left_s >= seconds

    def may_fit(self, finals_s: float, screens_s: float = 0.0, *, of: Sequence[Config] = ()) -> bool:
        """Whether finals ``of`` these that are foreseen to take so long, and screens before them, may come off in what
        is left.
        """
        return self.fits(screens_s + self.hoped_s(finals_s, of=of))

    def hoped_s(self, finals_s: float, *, of: Sequence[Config] = ()) -> float:
        """The seconds in which finals ``of`` these may come off that are foreseen to take so long: fewer than these
        until a round has shown what one takes.
        """
        was_run = any(trial.phase is Phase.FINALS for trial, _ in self.runs.whole_loops())
        is_rough = self.runs.take_turns(of) and not was_run
        return min(self._sure_s(finals_s, of), HOPE * finals_s if is_rough else math.inf)

    def is_sure_to_fit(self, proof_s: float, *, of: Sequence[Config] = ()) -> bool:
        """As ``may_fit``, if it takes as long as foreseen."""
        return self.fits(self._sure_s(proof_s, of))

    def _sure_s(self, proof_s: float, of: Sequence[Config]) -> float:
        # By turns the last round may end with half its turns.
        return proof_s - (self.runs.finals_window_s([]) if self.runs.take_turns(of) else 0.0)

    @property
    def runs(self) -> RunTimes:
        """What runs will take."""
        loaders = loader_knobs(self.space) if self.space is not None else frozenset[str]()
        return RunTimes(self.plan, self.trials, self.by_turns, self.turn_s, loaders, self.together)

    def finals_s(self, config: Config, rounds: int, run_s: float = 0.0) -> float:
        """What so many rounds of the config and the baseline take, where one of the config takes at least ``run_s``."""
        return rounds * self.runs.round_s([BASELINE, config], run_s)

    def proof_s(self, config: Config, run_s: float = 0.0, rounds: int = FEWEST_ROUNDS) -> float:
        """What is left to run of a proof: of the screen where one is due, and of so many rounds of the finals."""
        return self._screens_s(config) + self.finals_s(config, max(0, rounds - self.rounds_done(config)), run_s)

    def proof_beside_s(self, config: Config, before: Config) -> float:
        """What is left to run of a proof behind that of another config: where both have screens of one length, the
        script as written runs for both of them once.
        """
        proof_s, samples = self.proof_s(config), self._screened(config)
        if not samples or samples != self._screened(before):
            return proof_s
        return proof_s - sum(self.runs.screen_s(one, samples) for one, _ in self._screen_runs(config) if not one)

    def _screens_s(self, config: Config) -> float:
        """What is left to run of the config's screen; 0 where none is due."""
        samples = self._screened(config)
        return sum(self.runs.screen_s(one, samples) for one, _ in self._screen_runs(config)) if samples else 0.0

    def _screen_runs(self, config: Config) -> list[tuple[Config, int]]:
        """The config and the seed of each run that its screen lacks."""
        samples = self._screened(config)
        done = {(t.config, t.seed) for t in self.trials if t.phase is Phase.SCREEN and t.samples == samples}
        runs = [(one, seed) for seed in range(1, SEEDS + 1) for one in (BASELINE, config)]
        return [run for run in runs if run not in done]

    def _screened(self, config: Config) -> int:
        """The samples of the config's screen; 0 where none is due."""
        if not self.needs_screen(config):
            return 0
        step, recorded = larger_step(config, self.space), screened_samples(self.trials)
        return screen_lengths(self.plan, baseline_of(self.trials), step, recorded)[0]

    def rounds_done(self, config: Config) -> int:
        """The rounds of the config's last finals that have been run."""
        finals = [trial for trial in self.trials if trial.phase is Phase.FINALS and trial.config == config]
        return sum(trial.group == finals[-1].group for trial in finals)

    def needs_screen(self, config: Config) -> bool:
        """As the function of that name."""
        return needs_screen(config, self.plan, self.space)

    def reserved_s(self) -> float:
        """Kept for the proof: of the best trial so far, else of one that is worth nearly as much, else of a later one.

        For a large gain whose proof may just come off all that is left is kept; where none fits, the search has it.
        """
        larger_s, chosen = self._larger_proof_s(), self._to_prove()
        if chosen is not None:
            proof_s = chosen[1]
            most_s = self._share_to_tell() * (self.budget.seconds or math.inf)
            both_s = proof_s + (self._larger_proof_s(chosen[0].config) if larger_s else 0.0)
            if both_s > most_s or not self.fits(both_s):
                if self.larger_comes_first and self.fits(larger_s):
                    return self.budget.reserved_s(LONGER_THAN_FORESEEN * larger_s, found=True)
                both_s = proof_s
            kept_s = max(both_s, LONGER_THAN_FORESEEN * self.proof_s(chosen[0].config))
            return self.budget.reserved_s(kept_s, found=True)
        if larger_s and self.fits(larger_s):
            return self.budget.reserved_s(larger_s, found=True)
        proof_s = self.unfound_proof_s()
        return self.budget.reserved_s(proof_s, found=False) if self.fits(proof_s) else 0.0

    def unfound_proof_s(self) -> float:
        """What a proof takes of a config that isn't found yet: of one that may need a screen."""
        axes = self.space.axes if self.space is not None else ()
        return self.proof_s(Config({axis.knob.name: axis.values[0] for axis in axes}))

    def _to_prove(self) -> tuple[Trial, float] | None:
        """The trial whose proof time is kept for, and how much; None where there is nothing that could be proven.

        That is the best, else the fastest of those that are worth as much as a doubtful proof of the best and whose
        proof is sure to fit, else the best where its gain is large and its proof may fit, else any whose proof fits.
        """
        best = self._best
        gain = self._gain(best)
        if best is None or best.phase is Phase.BASELINE or gain is None:
            return None
        for trial in (best, *self._worth_as_much(gain)):
            if self.fits(proof_s := self._planned_proof_s(trial.config)):
                return trial, proof_s
        screens_s, left_s = self._screens_s(best.config), self.left_s
        may_fit = self.may_fit(self.proof_s(best.config) - screens_s, screens_s, of=[BASELINE, best.config])
        if gain >= LARGE and may_fit and left_s is not None:
            return best, left_s
        lesser = ((trial, self._planned_proof_s(trial.config)) for trial in self._worth_as_much(WORTH_HAVING**2))
        return next((each for each in lesser if self.fits(each[1])), None)

    def _planned_proof_s(self, config: Config) -> float:
        """What a proof of the config takes, with as many rounds as time may be kept for.

        Three rounds prove a large gain, and tell roughly how large it is.
        """
        for rounds in range(max(self.rounds_to_tell(), FEWEST_ROUNDS), FEWEST_ROUNDS, -1):
            proof_s = self.proof_s(config, rounds=rounds)
            share = LARGEST_SHARE_FOUND if rounds <= self.plan.finals_rounds else self._share_to_tell()
            if proof_s <= share * (self.budget.seconds or math.inf) and self.fits(proof_s):
                return proof_s
        return self.proof_s(config)

    def _share_to_tell(self) -> float:
        """Of the budget may be kept for more than the proof of one gain by the usual rounds."""
        ranked = any(trial.phase is Phase.ROTATION and trial.measurement is not None for trial in self.trials)
        return LARGEST_SHARE_RANKED if ranked else LARGEST_SHARE_UNRANKED

    def _worth_as_much(self, gain: float) -> list[Trial]:
        """The trials whose proof, were it sure to come off, is worth as much as one of this gain with a chance of about
        one half: the square of theirs is as large. Fastest first.
        """
        least = math.sqrt(max(1.0, gain))
        gains = [(self._gain(trial) or 0.0, trial) for trial in self._kept]
        worth = [(own, trial) for own, trial in gains if trial.config and own >= least]
        return [trial for _, trial in sorted(worth, key=lambda each: -each[0])]

    def rounds_to_tell(self, finalists: int = 1) -> int:
        """The rounds of finals that tell the best gain so far well, by what trials said of the noise by turns; each of
        so many ``finalists`` may turn out to be the best.

        As many as the plan has where too few of them say it, and where the gain is small: then searching is worth more.
        The most there may be where even those wouldn't do.
        """
        usual, window = self.plan.finals_rounds, window_s(self.plan, Phase.FINALS, by_turns=True)
        measured = [outcome.measurement for trial, outcome in self.runs.whole_loops() if trial.phase is Phase.SEARCH]
        noises = [noise_within(measurement, window) for measurement in measured if measurement is not None]
        known = [noise for noise in noises if noise is not None]
        gain = self._gain(self._best)
        if not self.by_turns or len(known) < FEWEST_TOLD or (gain or 1.0) < LARGE:
            return usual
        noise, most = APART * statistics.median(known), self.plan.most_rounds
        return rounds_to_tell(noise, usual, most, finalists) or most

    def proof_is_worth_more(self, expected: float) -> bool:
        """Whether the seconds of a trial that is expected to gain so much more are better kept for the proof.

        That is so where the finals may need them, with the rounds that are added while they are undecided, and bring
        the gain that was found at a higher rate than the search another one. A gain that isn't proven is none; that of
        a larger effective batch is another contest's.
        """
        chosen = self._to_prove()
        if self.left_s is None or chosen is None:
            return False
        trial, proof_s = chosen
        gain = self._gain(trial) or 1.0
        if gain <= 1.0 or proof_s <= 0:
            return False
        is_scarce = self.left_s - self.runs.trial_s() < ADDED_ROUNDS * proof_s
        return is_scarce and math.log(expected) / self.runs.trial_s() < math.log(gain) / proof_s

    @cached_property
    def _kept(self) -> list[Trial]:
        """The trials of baseline and search that keep the effective batch and may be candidates."""
        return [trial for trial in keeping_batch(searched(self.trials), self.space) if not self.gone(trial.config)]

    @cached_property
    def _best(self) -> Trial | None:
        """The trial that would be proven first, of those that keep the effective batch; the baseline where none is
        faster.
        """
        kept = self._kept
        faster = [trial for trial in kept if (self._gain(trial) or 0.0) > 1.0]
        gains = {trial.number: self._gain(trial) or 0.0 for trial in faster}
        best = max(faster, key=lambda trial: (gains[trial.number], -trial.number), default=None)
        return best if best is not None else self._track.best_of(kept)

    @cached_property
    def _track(self) -> BaselineTrack:
        return BaselineTrack(self.trials, self.plan.objective)

    @cached_property
    def _history(self) -> History | None:
        return History(self.space, self.plan.objective, self.trials) if self.space is not None else None

    def _gain(self, trial: Trial | None) -> float | None:
        """The gain to expect of the trial's config; None without a trial, or a score of it."""
        if trial is None or self._history is None:
            return self._track.gain(trial)
        return self._history.expected(trial)

    @property
    def larger_comes_first(self) -> bool:
        """Whether time for a single proof goes to a larger batch: it is likely to reach a loss much sooner, what keeps
        the effective one gains little, and neither a screen nor finals have judged any larger one.
        """
        gain = max(1.0, self._gain(self._best) or 1.0)
        is_ahead = self._likely_larger is not None and gain < LARGE <= self._likely_larger[1] / gain
        configs = [trial.config for trial in self._larger]
        judged = any(one in self.too_slow or self.rounds_done(one) >= FEWEST_ROUNDS for one in configs)
        return is_ahead and not judged

    @property
    def has_time_to_prove(self) -> bool:
        """Whether a proof fits of anything found that keeps the effective batch."""
        return self._to_prove() is not None

    @property
    def first_larger(self) -> Trial | None:
        """The larger batch that time for a single proof goes to; None where that goes to what keeps the batch."""
        return self._likely_larger[0] if self.larger_comes_first and self._likely_larger is not None else None

    def _larger_proof_s(self, before: Config = BASELINE) -> float:
        """What proving the likeliest larger batch takes, behind the proof of ``before``; 0 where that isn't likely to
        reach a loss sooner than what keeps the effective one.
        """
        gain = self._gain(self._best) or 1.0
        if self._likely_larger is None or self._likely_larger[1] <= gain:
            return 0.0
        return self.proof_beside_s(self._likely_larger[0].config, before)

    @cached_property
    def _larger(self) -> list[Trial]:
        """The trials of the search with a larger effective batch."""
        space = self.space
        return [trial for trial in searched(self.trials) if space is not None and space.is_larger(trial.config)]

    @cached_property
    def _likely_larger(self) -> tuple[Trial, float] | None:
        """The larger batch that is likely to reach a loss soonest by its single trial, and how much sooner; None where
        none was measured that might be proven: how each learns has to be seen for that.
        """
        space = self.space
        if space is None or not self.plan.accuracy.any or gives_no_loss(baseline_of(self.trials)):
            return None
        failed = {*self.too_slow, *failed_in(self.trials, self.plan.objective)}
        larger = [trial for trial in self._larger if trial.config not in failed]
        gains = [(trial, self._track.gain(trial), batch_factor(trial.config, space.knowledge)) for trial in larger]
        found = [(trial, gain * likely_efficiency(factor, USUAL_NOISE)) for trial, gain, factor in gains if gain]
        return max(found, key=lambda each: each[1], default=None)

    def search_s(self) -> float | None:
        """Left for searching, beside what is kept for the proof; None without a budget."""
        return None if self.left_s is None else max(0.0, self.left_s - self.reserved_s())

    def search_is_over(self, ahead: Config | None = None) -> str:
        """Why no further search trial may start by the budget, or "".

        Where its config is known (``ahead``), one that takes longer than others needs the time for that, but for the
        first: cut off by its end it would tell nothing, and the proof has use for the time.
        """
        begun, usual_s, reserved_s = searched(self.trials), self.runs.trial_s(), self.reserved_s()
        done, late = len(begun), sum(map(was_late, begun))
        over = self.budget.search_is_over(self.now, done, usual_s, reserved_s, late=late)
        if over or ahead is None or done < FEWEST_BEFORE_LONG:
            return over
        longer_s = self.runs.searched_s(ahead)
        if longer_s > usual_s:
            over = self.budget.search_is_over(self.now, done, longer_s, reserved_s, late=late)
        return f"{over}, with {longer_s:.0f} s for a trial of {compiled_text(ahead)}" if over else ""


def needs_screen(config: Config, plan: StudyPlan, space: ResolvedSpace | None) -> bool:
    """Whether a config turns a knob that changes more than speed, and what it changes is to be looked at."""
    knobs = space.space.knobs if space is not None and plan.accuracy.any else ()
    return any(knob.tier > 1 for knob in knobs if knob.name in config)


def searched(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of baseline and search: those that ``--trials`` counts, but for what ``was_late``."""
    return [trial for trial in trials if trial.phase in (Phase.BASELINE, Phase.SEARCH)]


def was_late(trial: Trial) -> bool:
    """Whether the study's time was up before the trial was measured: it says nothing of its config."""
    return trial.outcome is not None and trial.outcome.kind is OutcomeKind.UNFINISHED


def compiled_text(config: Config) -> str:
    """What the config compiles, for people."""
    return config_text(compiled_setting(config))


def keeping_batch(trials: Sequence[Trial], space: ResolvedSpace | None) -> list[Trial]:
    """Those whose configs keep the effective batch: larger ones are a contest apart. All before a space is known."""
    return [trial for trial in trials if space is None or not trial.config or space.keeps_batch(trial.config)]


def larger_step(config: Config, space: ResolvedSpace | None) -> int:
    """The samples that all ranks take in a step of a larger effective batch, in whichever contest; 0 of others."""
    known = space if space is not None and batch_factor(config, space.knowledge) > 1 else None
    return known.ranks * samples_per_step({**known.knowledge.as_written, **config}) if known is not None else 0
