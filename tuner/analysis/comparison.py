"""The finals: the best candidates meet the baseline again, interleaved, each run in a fresh process."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tuner.analysis import stats
from tuner.analysis.contention import contaminated_by, own_cpus
from tuner.analysis.gain import WORTH_HAVING, BaselineTrack, at_rate, gain, score_of
from tuner.analysis.proven import Proof, proven_interval
from tuner.analysis.schedule import Schedule
from tuner.analysis.turns import TOLD_TO
from tuner.model import BASELINE, Config, Evidence, Measurement, Outcome, Phase, Ratio, Trial, Verdict, Winner
from tuner.objective import Objective

FEWEST_PAIRS = 3
TOLD = 0.96
"""Of the interval that is told of a proven gain, and holds with 95%: finals end once it is narrow, which it is sooner
where the rounds happen to agree (tests/benchmarks/told_gain.py)."""
NO_PROOF = "no proof: "
"""How the label begins of finals whose rounds couldn't prove anything; the rest says why."""
COLD_OFF = 0.1
"""Of what a cold start takes beyond one that each round shows: by so much it may be off, of either side. It is known
from one run, whatever the rounds: of 300 finals of equal configs (100,000 samples, rounds that scatter by 1%, starts by
5%) 101 said "faster" without this where the candidate alone compiled for 51 s, 94 where the script as written did,
and 41 where both did for 20 s; 2, 0 and 1 do so with it, and 38, 27 and 20 where such starts scatter by 10%.
"""
_ALIKE = 1e-9
"""Rounds whose logarithms differ by less show no noise."""


@dataclass(frozen=True)
class Pairs:
    """The runs of one candidate and of the baseline, from the rounds in which both gave a figure."""

    config: Config
    baseline: tuple[Measurement, ...]
    candidate: tuple[Measurement, ...]
    gains: tuple[float, ...]
    rates: tuple[tuple[float, float], ...]

    def ratio(self, confidence: float, objective: Objective) -> Ratio:
        """How many times better than the baseline, with its interval."""
        before, after = [pair[0] for pair in self.rates], [pair[1] for pair in self.rates]
        if not objective.maximize:
            before, after = after, before
        interval = stats.mean_ratio_interval(before, after, confidence)
        return Ratio(interval.estimate, interval.low, interval.high)


def choose_candidates(
    trials: Sequence[Trial], objective: Objective, count: int, *, going_on: tuple[int, ...] = ()
) -> tuple[Trial, ...]:
    """The best trials of the search that beat the baseline, best first, of those that ``ranked_trials`` gives."""
    return tuple(trial for own, trial in ranked_trials(trials, objective, going_on) if own > 1.0)[:count]


def left_open(
    trials: Sequence[Trial], objective: Objective, fit: Sequence[Trial], *, going_on: tuple[int, ...] = ()
) -> tuple[Trial, ...]:
    """The trials of the search beside those that are ``fit`` for finals which may bring a gain worth having, and more
    than these, by their own intervals; best first. Those that are ``going_on`` are among them.

    No others where the best that is fit is a gain by its own interval: it is what the finals are for. Trials that took
    no turns tell nothing here, since their intervals don't say how far runs differ.
    """
    ranked = ranked_trials(trials, objective, going_on)
    gains = {trial.number: own for own, trial in ranked}
    best = max((trial for trial in fit if trial.number in gains), key=lambda trial: gains[trial.number], default=None)
    is_sure = best is not None and math.log(gains[best.number]) > _uncertainty(best)
    least = math.log(max([WORTH_HAVING, *(gains.get(trial.number, 0.0) for trial in fit)]))
    return tuple(
        trial for own, trial in ranked
        if trial not in fit
        and (trial.number in going_on or (not is_sure and 0 < _uncertainty(trial) >= least - math.log(own)))
    )  # fmt: skip


def _uncertainty(trial: Trial) -> float:
    """How far the logarithm of a gain by turns may be off, by its 95% interval; 0 of a trial that took none."""
    reference = trial.measurement.reference if trial.measurement is not None else None
    if reference is None:
        return 0.0
    low, high = reference.gain.low, reference.gain.high
    return math.log(high / low) / 2 if 0 < low <= high < math.inf else math.inf


def ranked_trials(
    trials: Sequence[Trial], objective: Objective, going_on: tuple[int, ...]
) -> list[tuple[float, Trial]]:
    """The trials of the search that may be candidates, with their gains, best first.

    One that also turns a knob without effect gives way to the same config without it. One that failed in the finals is
    a candidate no more, but in those that are still ``going_on``: their ``Schedule.group``.
    """
    failed = set(failed_in((trial for trial in trials if trial.group != going_on), objective))
    track = BaselineTrack(trials, objective)
    tried = {trial.config for trial in trials if trial.phase in (Phase.BASELINE, Phase.SEARCH)}
    gains = []
    for trial in trials:
        own = track.gain(trial) if trial.phase is Phase.SEARCH else None
        if own is not None and trial.config not in failed:
            effective = with_effect(trial)
            if effective != trial.config and effective in tried:
                continue
            gains.append((own, trial))
    return sorted(gains, key=lambda pair: (-pair[0], pair[1].number))


def with_effect(trial: Trial) -> Config:
    """The config without the knobs that met nothing to turn."""
    measurement = trial.outcome.measurement if trial.outcome is not None else None
    reports = measurement.knobs if measurement is not None else ()
    in_vain = {report.knob for report in reports if report.evidence is Evidence.NOT_APPLICABLE}
    return Config({knob: value for knob, value in trial.config.items() if knob not in in_vain})


def failed_in(trials: Iterable[Trial], objective: Objective) -> list[Config]:
    """Configs of which a run in any finals of the study gave no figure: what doesn't hold isn't a winner."""
    runs = (trial for trial in trials if trial.phase is Phase.FINALS and trial.outcome is not None)
    return [run.config for run in runs if run.config and score_of(run.outcome, objective) is None]


class Round(NamedTuple):
    """A candidate's run beside the script as written: the scores of both and their measurements, the latter's first."""

    scores: tuple[float, float]
    measurements: tuple[Measurement, Measurement]


def round_of(before: Trial | None, after: Trial | None, objective: Objective) -> Round | None:
    """What two runs of one round say; None where one gave no figure, or they can't be held against each other."""
    if before is None or after is None or before.outcome is None or after.outcome is None:
        return None
    there = _in_turns(before.outcome, after.measurement)
    written, own = there.measurement, _with_sure_start(after.outcome, there.measurement, objective)
    scores = score_of(there, objective), score_of(own, objective)
    if scores[0] is None or scores[1] is None or written is None or after.measurement is None:
        return None
    if written.unit != after.measurement.unit:
        return None  # steps against samples: their ratio is no gain
    if bool(written.turns) != bool(after.measurement.turns):
        return None  # one of them lost those that it took turns with
    surely = _without_unseen(scores[1], after.measurement, after.outcome.knowledge.unseen_samples, objective)
    return Round((scores[0], surely), (written, after.measurement))


def pairs_of(
    schedule: Schedule, config: Config, trials: Iterable[Trial], objective: Objective, *, calm_only: bool = False
) -> Pairs:
    """The rounds of a candidate so far; with ``calm_only`` those that nothing disturbed much."""
    runs = {(trial.round, trial.config): trial for trial in trials if schedule.holds(trial)}
    numbers = range(1, schedule.rounds + 1)
    every = (round_of(runs.get((each, BASELINE)), runs.get((each, config)), objective) for each in numbers)
    rounds = [found for found in every if found is not None]
    if calm_only:
        disturbed = _disturbed(schedule, [found.measurements for found in rounds])
        rounds = [found for found, causes in zip(rounds, disturbed, strict=True) if not causes]
    return Pairs(
        config,
        tuple(found.measurements[0] for found in rounds),
        tuple(found.measurements[1] for found in rounds),
        tuple(gain(found.scores[1], found.scores[0], objective) for found in rounds),
        tuple(found.scores for found in rounds),
    )


def _in_turns(before: Outcome, after: Measurement | None) -> Outcome:
    """The baseline's run as it was in its turns between the candidate's own, where it had some."""
    if after is None or after.reference is None or before.measurement is None:
        return before
    return replace(before, measurement=at_rate(before.measurement, after.reference.rate))


def _with_sure_start(after: Outcome, written: Measurement | None, objective: Objective) -> Outcome:
    """A candidate's run with what it may start later than the script as written, where nothing is compiled yet, as far
    as planned samples pay it and another run of either has to tell it. One run that tells it of both is off alike.
    """
    own = after.measurement
    if objective.planned_samples is None or own is None or written is None:
        return after
    if own.cold_first_step_s == written.cold_first_step_s:
        return after
    seen_s = min(own.first_step_s, written.first_step_s)
    cold_s = (side.cold_first_step_s for side in (own, written) if side.cold_first_step_s is not None)
    off_s = COLD_OFF * math.hypot(*(max(0.0, each - seen_s) for each in cold_s))
    return replace(after, measurement=replace(own, cold_first_step_s=own.start_s + off_s))


def _without_unseen(score: float, measured: Measurement, unseen_samples: int, objective: Objective) -> float:
    """A candidate's figure without what may have lain ready before its window, where nothing shows how much did.

    A loop that lives on such a stock to the window's last step is faster by just so many samples, or steps where these
    are counted: that is no speed of the config's. Whatever pauses the loop before the window, a compilation, fills the
    stock anew.
    """
    taken = sum(block.samples for block in measured.blocks)
    kept = max(0.0, 1 - unseen_samples / taken) if taken else 1.0
    least = 0.01  # a ratio needs figures above 0
    return score * max(kept, least) if objective.maximize else score / max(kept, least)


def decide(
    schedule: Schedule, trials: Sequence[Trial], objective: Objective, *, without: Collection[Config] = ()
) -> Winner | None:
    """What the finals proved; None where no candidate was measured twice beside the baseline.

    Those ``without`` whom it is decided still count as candidates: the interval is as wide.

    The candidate whose interval's lower end is highest is judged, by its calm rounds. Fewer than three of them prove
    nothing: the figures are those of all rounds then, and the label says why they are no proof.
    """
    contests = _contests(schedule, trials, objective, without)
    if not contests:
        return None
    best = max(contests, key=lambda contest: (contest.enough, contest.bound.low))
    return Winner(
        verdict=Verdict.IMPROVED if best.proven else Verdict.KEEP_BASELINE,
        config=best.pairs.config,
        speedup=told_of(schedule, best, trials, objective, without=without),
        baseline=typical(best.pairs.baseline),
        winner=typical(best.pairs.candidate),
        runs=len(best.pairs.rates),
        label="" if best.enough else _why_no_proof(schedule, best.pairs),
    )


@dataclass(frozen=True)
class Contest:
    """One candidate against the baseline, so far.

    ``pairs``: the rounds by which it is judged, the calm ones where they are ``enough`` to prove something, else all.
    ``bound``: the ratio with the interval that has to lie above 1; ``proof``: what its rounds had to say for that.
    """

    pairs: Pairs
    enough: bool
    bound: Ratio
    proof: Proof

    @property
    def proven(self) -> bool:
        """Whether the candidate is shown to be faster."""
        return self.enough and self.bound.low > 1.0

    def told(self, rivals: int) -> Ratio:
        """What is told of its speed, where so many candidates, itself among them, may be the best one.

        Of a proven gain that is an interval that holds although only lucky rounds prove a small one: with ``TOLD``, for
        all that may be the best together, since who is taken for it is lucky as well. Of others it is the one by which
        that was decided.
        """
        logs = [math.log(gain) for gain in self.pairs.gains]
        if not self.proven or max(logs) - min(logs) < _ALIKE:
            return self.bound
        found = proven_interval(logs, self.proof, 1 - (1 - TOLD) / max(1, rivals))
        return Ratio(math.exp(found.estimate), math.exp(found.low), math.exp(found.high))


def contest_of(
    schedule: Schedule, config: Config, trials: Sequence[Trial], objective: Objective
) -> Contest | None:
    """How the candidate stands; None before it was measured twice beside the baseline.

    That it is faster is decided at the confidence of all looks and openings together: at that of the first look where
    that has proven it already. More rounds make the interval sharper then, and it has to hold to the end: they are no
    second chance.
    """
    pairs = pairs_of(schedule, config, trials, objective, calm_only=True)
    enough = len(pairs.rates) >= FEWEST_PAIRS
    if not enough:
        pairs = pairs_of(schedule, config, trials, objective)
    count = len(pairs.rates)
    if count < 2:
        return None
    confidence, proof = schedule.confidence, Proof(_needed(schedule.confidence, count))
    first = schedule.at_first_look
    if first is not None:
        then = pairs_of(first, config, trials, objective, calm_only=True)
        if len(then.rates) >= FEWEST_PAIRS:
            at_first = _needed(first.confidence, len(then.rates))
            proof = replace(
                proof, first=len(then.rates), first_look=at_first, at_once=_needed(first.confidence, count)
            )
            if then.ratio(first.confidence, objective).low > 1.0:
                confidence = first.confidence
    return Contest(pairs, enough, pairs.ratio(confidence, objective), proof)


def told_of(
    schedule: Schedule, contest: Contest, trials: Sequence[Trial], objective: Objective,
    *, without: Collection[Config] = (),
) -> Ratio:
    """What is told of a candidate's speed by now (``Contest.told``): who is clearly slower isn't taken for the best."""
    rivals = _contests(schedule, trials, objective, without)
    return contest.told(sum(each.bound.high >= contest.bound.low for each in rivals))


def _contests(
    schedule: Schedule, trials: Sequence[Trial], objective: Objective, without: Collection[Config]
) -> list[Contest]:
    failed = {*failed_in(trials, objective), *without}
    judged = [
        contest_of(schedule, candidate.config, trials, objective)
        for candidate in schedule.candidates if candidate.config not in failed
    ]  # fmt: skip
    return [contest for contest in judged if contest is not None]


def _needed(confidence: float, rounds: int) -> float:
    """The t statistic with which so many rounds prove a gain."""
    return stats.student_t_quantile((1 + confidence) / 2, rounds - 1.0)


def _disturbed(schedule: Schedule, rounds: Sequence[tuple[Measurement, Measurement]]) -> list[tuple[str, ...]]:
    """What disturbed any run of each round too much, each cause once; the baseline's run is each round's first.

    By turns the candidate's figures say what others took of the cores, on both sides: they are those of calm turns of
    both, as far as there are enough. What the driver said of a card is each run's own.
    """
    sides = [[(run, own_cpus(side)) for run in side] for side in zip(*rounds, strict=True)]
    found = []
    for (written, written_cpus), (run, cpus) in zip(*sides, strict=True):
        beside = schedule.host if run.reference is None else None
        causes = contaminated_by(written, beside, written_cpus), contaminated_by(run, schedule.host, cpus)
        found.append(tuple(dict.fromkeys(itertools.chain(*causes))))
    return found


def _why_no_proof(schedule: Schedule, pairs: Pairs) -> str:
    rounds = _disturbed(schedule, list(zip(pairs.baseline, pairs.candidate, strict=True)))
    causes = Counter(cause for causes in rounds for cause in causes)
    if causes:
        return NO_PROOF + ", ".join(f"{cause} in {n} of {len(rounds)} rounds" for cause, n in causes.items())
    return f"{NO_PROOF}only {len(rounds)} of {schedule.rounds} rounds have a figure of both"


def is_decided(winner: Winner | None) -> bool:
    """Whether more rounds would change little: a gain is proven and known well, or none worth having is left."""
    if winner is None or winner.label:
        return winner is None
    ratio = winner.speedup
    sharp = (ratio.high - ratio.low) / 2 <= TOLD_TO * ratio.ratio
    return (winner.verdict is Verdict.IMPROVED and sharp) or ratio.high < WORTH_HAVING


def typical(runs: Sequence[Measurement]) -> Measurement:
    """The run with the median rate, as it would have been at the geometric mean of all, with their range and peaks."""
    ordered = sorted(runs, key=lambda run: run.rate)
    on_device = [run.peak_device_bytes for run in runs if run.peak_device_bytes is not None]
    mean = statistics.geometric_mean([run.rate for run in runs])
    return replace(
        at_rate(ordered[len(ordered) // 2], mean),
        low=ordered[0].rate,
        high=ordered[-1].rate,
        peak_host_bytes=max(run.peak_host_bytes for run in runs),
        peak_device_bytes=max(on_device, default=None),
    )
