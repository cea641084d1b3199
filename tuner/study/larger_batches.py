"""The contest of larger effective batches (tier 3): screened, proven by the time to a loss, beside the search's winner.

What keeps the effective batch is proven first, and this has the time that is left then; where that gains little, and
there is time for a single proof, this is. Of the permitted error it has the share of an opening of its own, so that
both contests together keep to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.analysis.accuracy import Screened
from tuner.analysis.comparison import NO_PROOF, choose_candidates, contest_of, decide, failed_in
from tuner.analysis.first_loss import of_batch
from tuner.analysis.gain import WORTH_HAVING
from tuner.analysis.larger_batches import USUAL_NOISE, likely_efficiency, noise_of
from tuner.analysis.learning import gives_no_loss, time_to_loss
from tuner.analysis.loss_checks import sample_efficiency
from tuner.analysis.schedule import CONFIDENCE, Schedule, opening_share
from tuner.analysis.stats import Noninferiority
from tuner.formatting import config_text
from tuner.knowledge import batch_factor
from tuner.model import Config, Phase, Ratio, Trial, Verdict, Winner
from tuner.result import LargerBatch
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.context import StudyContext
from tuner.study.finals import candidate_of, hold, looked_at
from tuner.study.schedules import Contest, all_finals, going_on, schedule_of, was_judged
from tuner.study.screens import keep_screen, recorded_pairs, screen, screen_of

MOST_SCREENED = 3
"""So many larger batches are screened, each chosen by what those before it showed."""
NO_SOONER = "isn't shown to reach a loss sooner than what keeps the effective batch"
_AS_WRITTEN = Ratio(1.0, 1.0, 1.0)
TOO_LITTLE = "it learns too little from each sample for its speed"
UNTOLD = "its screen can't tell how it learns"
GOES_ON = "the same command with a larger --budget goes on"
UNCOMPARED = f"no time left to compare how it learns, and to prove it ({GOES_ON})"
UNSCREENED = "how it learns isn't compared (--max-loss-increase off)"


def set_aside(study: StudyContext) -> bool:
    """Keeps the time that proving a larger batch takes, where what comes before has enough all the same.

    Whether it is to be proven first instead, which the study says: where it is worth more, and nothing else that was
    found may be proven beside it.
    """
    study.set_aside_s = 0.0
    time, best = study.time, study.leading
    candidates = [trial for trial in _candidates(study) if trial.config not in study.too_slow]
    if not candidates or not _may_win(study, candidates[0], max(1.0, study.track.gain(best) or 1.0)):
        return False
    alone_s, before_s = time.proof_s(candidates[0].config), 0.0
    beside_s = alone_s
    if best is not None and best.config:
        before_s = time.proof_s(best.config, rounds=time.rounds_to_tell())
        beside_s = time.proof_beside_s(candidates[0].config, best.config)
    comes_first = time.larger_comes_first and not time.fits(before_s + beside_s)
    if not time.fits(alone_s if comes_first else before_s + beside_s):
        return False
    study.set_aside_s = beside_s
    if not comes_first or best is None or not best.config or study.time.has_time_to_prove:
        return False
    larger, other = config_text(candidates[0].config), config_text(best.config)
    study.note(f"{larger} (tier 3) is proven before {other}, which gains little: there is no time for both")
    return True


def prove_larger(study: StudyContext, winner: Winner | None) -> LargerBatch | None:
    """The best of the larger batches, proven as far as the time left allows; None where none was measured.

    What earlier finals of the study proved stands, unless one was proven that is sooner still. ``winner`` is what the
    finals say of those that keep the effective batch. Raises as ``StudyContext.execute``.
    """
    study.set_aside_s = 0.0
    return _standing(study, _judged_now(study, winner), winner)


def _judged_now(study: StudyContext, winner: Winner | None) -> LargerBatch | None:
    """What is made of those that may win now. Where one fails in its finals, the next ones have the time left."""
    judged: LargerBatch | None = None
    before, failed = -1, len(_failed(study))
    while failed != before:
        judged = _judged_next(study, winner) or judged
        before, failed = failed, len(_failed(study))
    return judged


def _failed(study: StudyContext) -> set[Config]:
    return set(failed_in(study.trials, study.plan.objective))


def _judged_next(study: StudyContext, winner: Winner | None) -> LargerBatch | None:
    candidates = _candidates(study)
    if not candidates:
        return None
    if not study.plan.accuracy.any:
        return _single(study, candidates[0], UNSCREENED)
    bar = _bar(study, winner).ratio
    promising = [trial for trial in candidates if _may_win(study, trial, bar)]
    if not promising:
        return _single(study, candidates[0], NO_SOONER)
    told = _screens(study, promising)
    fit = [trial for trial in promising if trial.number in told and _passes(study, trial, told[trial.number], bar)]
    fit.sort(key=lambda trial: -_expected(study, trial, told[trial.number]))
    if not fit:
        return _unfit(study, promising, told)
    schedule = schedule_of(study, Contest.LARGER, fit[:1])
    if schedule is None:
        return _single(study, fit[0], f"no time left for its finals ({GOES_ON})", told.get(fit[0].number))
    judged = hold(study, schedule, _verdict)
    return _found(study, all_finals(study, Contest.LARGER)[-1], judged, winner)


def larger_so_far(study: StudyContext, winner: Winner | None) -> LargerBatch | None:
    """The best of the larger batches by what the record holds: nothing is run."""
    candidates = _candidates(study)
    ended = "the study ended before its finals finished"
    return _standing(study, _single(study, candidates[0], ended) if candidates else None, winner)


def _standing(study: StudyContext, now: LargerBatch | None, winner: Winner | None) -> LargerBatch | None:
    """The one that reaches a loss soonest of all that finals have proven, by the lower end; else ``now``."""
    if study.space is None or study.space.larger is None:
        return now
    failed = failed_in(study.trials, study.plan.objective)
    proven = {now.config: now} if now is not None and now.proven else {}
    for schedule in reversed(all_finals(study, Contest.LARGER)):
        trial, looked = schedule.candidates[0], looked_at(study, schedule)
        judged_now = now is not None and now.winner is not None and now.config == trial.config
        if looked is None or judged_now or trial.config in {*failed, *proven}:
            continue
        if was_judged(study, looked):
            earlier = _found(study, looked, _verdict(study, looked), winner)
            if earlier.proven:
                proven[trial.config] = earlier
    best = max(proven.values(), key=lambda one: one.sooner.low if one.sooner is not None else 0.0, default=now)
    if best is not None and all(one.config != best.config for one in study.screened):
        screened = next((screen_of(study, t) for t in study.larger if t.config == best.config), None)
        study.screened = (*study.screened, screened) if screened is not None else study.screened
    return best


def _candidates(study: StudyContext) -> list[Trial]:
    """The trials with a larger effective batch that beat the baseline, the likeliest to reach a loss soonest first."""
    if study.space is None or study.space.larger is None:
        return []
    keeping = [trial for trial in study.trials if trial.phase is not Phase.SEARCH]
    again = going_on(study, Contest.LARGER)
    found = choose_candidates([*keeping, *study.larger], study.plan.objective, len(study.trials), going_on=again)
    return sorted(found, key=lambda trial: -_likely(study, trial, USUAL_NOISE))


def _likely(study: StudyContext, trial: Trial, noise: float) -> float:
    """How much sooner it is likely to reach a loss, by its single trial and that noise scale."""
    return (study.track.gain(trial) or 0.0) * likely_efficiency(batch_factor(trial.config, study.knowledge), noise)


def _bar(study: StudyContext, winner: Winner | None) -> Ratio:
    """How much sooner the winner that keeps the effective batch reaches a loss; 1 where nothing was proven of any."""
    if winner is None or winner.verdict is not Verdict.IMPROVED:
        return _AS_WRITTEN
    screened = next((one for one in study.screened if one.config == winner.config), None)
    if screened is None or screened.efficiency is None:
        return winner.speedup
    return time_to_loss(winner.speedup, screened.efficiency)


def _may_win(study: StudyContext, trial: Trial, bar: float) -> bool:
    """Whether it would be worth having, beside what reaches a loss ``bar`` times as fast, if each sample taught as much
    as before.
    """
    return (study.track.gain(trial) or 0.0) > WORTH_HAVING * bar


def _expected(study: StudyContext, trial: Trial, screened: Screened) -> float:
    """How much sooner it reaches a loss, by its single trial and its screen; 0 where the screen can't say."""
    return (study.track.gain(trial) or 0.0) * (screened.efficiency.ratio if screened.efficiency is not None else 0.0)


def _passes(study: StudyContext, trial: Trial, screened: Screened, bar: float) -> bool:
    """Whether its screen lets finals follow, which could show it to be worth having."""
    known = sample_efficiency(recorded_pairs(study, trial, screened.samples), 1 - CONFIDENCE) is not None
    passed = screened.verdict is Noninferiority.PASS and known
    return passed and _expected(study, trial, screened) > WORTH_HAVING * bar


def _of_batch(study: StudyContext, trial: Trial, efficiency: float) -> float:
    """What the batch alone makes of the efficiency, where the config without it was screened as well."""
    assert study.space is not None
    base = study.space.without_batch(trial.config)
    own = next((one.efficiency for one in study.screened if one.config == base and one.efficiency is not None), None)
    return efficiency / own.ratio if own is not None else efficiency


def _screens(study: StudyContext, candidates: Sequence[Trial]) -> dict[int, Screened]:
    """Trial → its screen: of the likeliest first, then of what that one's noise scale makes likelier still."""
    told: dict[int, Screened] = {}
    noise = USUAL_NOISE

    def likely(trial: Trial) -> float:
        if trial.number in told:
            return _expected(study, trial, told[trial.number])
        return _likely(study, trial, noise)

    while len(told) < min(MOST_SCREENED, len(candidates)):
        trial = max(candidates, key=likely)
        if trial.number in told:
            break
        result = screen(study, trial)
        if result is None:
            break
        told[trial.number] = result
        keep_screen(study, trial, result)
        if not result.seeds or of_batch(recorded_pairs(study, trial, result.samples)):
            break  # the script as written tells nothing, whatever is held to it, or its loss depends on the batch
        if result.efficiency is not None:
            own = _of_batch(study, trial, result.efficiency.ratio)
            noise = noise_of(batch_factor(trial.config, study.knowledge), own)
    return told


def _unfit(study: StudyContext, candidates: Sequence[Trial], told: dict[int, Screened]) -> LargerBatch:
    """The fastest of those that no finals follow for, and why."""
    screened = {trial.number: trial for trial in candidates if trial.number in told}
    late = UNTOLD if gives_no_loss(study.baseline) else UNCOMPARED
    if not screened:
        return _single(study, candidates[0], late)

    def hopes(number: int) -> tuple[bool, float]:
        return told[number].verdict is not Noninferiority.FAIL, _expected(study, screened[number], told[number])

    number = max(screened, key=hopes)
    result = told[number]
    if result.verdict is Noninferiority.PASS:
        why = NO_SOONER
    elif result.verdict is Noninferiority.FAIL:
        why = TOO_LITTLE if result.efficiency is not None else "it fails its screen"
    elif result.lacked_time:
        why = late
    else:
        why = UNTOLD if result.efficiency is None else "it isn't shown to learn enough from each sample for its speed"
    return _single(study, screened[number], why, result)


def _single(study: StudyContext, trial: Trial, why: str, screened: Screened | None = None) -> LargerBatch:
    """One that no finals have judged."""
    efficiency = screened.efficiency if screened is not None else None
    return LargerBatch(trial.config, study.track.gain(trial) or 0.0, None, efficiency, None, why)


def _found(study: StudyContext, schedule: Schedule, judged: Winner | None, winner: Winner | None) -> LargerBatch:
    """What these finals made of their candidate; it isn't proven unless it is shown to be sooner than the winner that
    keeps the batch.
    """
    trial = schedule.candidates[0]
    if judged is None:
        failed = trial.config in failed_in(study.trials, study.plan.objective)
        is_late = not failed and study.time.rounds_done(trial.config) < FEWEST_ROUNDS
        late = f"no time left for {FEWEST_ROUNDS} rounds of its finals ({GOES_ON})"
        return _single(study, trial, late if is_late else "it has no figure in the finals", screen_of(study, trial))
    _, efficiency, sooner = _figures(study, schedule, judged)
    told = time_to_loss(judged.speedup, efficiency) if efficiency is not None else None
    why = judged.label.removeprefix(NO_PROOF)
    bar = _bar(study, winner)
    if judged.verdict is Verdict.IMPROVED and sooner is not None and bar is not _AS_WRITTEN:
        if time_to_loss(sooner, Ratio(1 / bar.ratio, 1 / bar.high, 1 / bar.low)).low <= 1.0:
            why = NO_SOONER
            judged = replace(judged, verdict=Verdict.KEEP_BASELINE, label=why)
    elif judged.verdict is not Verdict.IMPROVED and not why:
        why = "it isn't shown to reach a loss sooner"
    if told is not None and judged.verdict is Verdict.IMPROVED:
        # What is told of a small gain reaches further down than what decided that it is one.
        told = Ratio(max(told.ratio, 1.0), max(told.low, 1.0), told.high)
    return LargerBatch(trial.config, study.track.gain(trial) or 0.0, judged, efficiency, told, why)


def _verdict(study: StudyContext, schedule: Schedule) -> Winner | None:
    """The figures of the finals, with the verdict on the time to a loss: its whole interval has to lie above 1."""
    winner = decide(schedule, study.trials, study.plan.objective)
    if winner is None:
        return None
    enough, _, sooner = _figures(study, schedule, winner)
    proven = enough and sooner is not None and sooner.low > 1.0
    return replace(winner, verdict=Verdict.IMPROVED if proven else Verdict.KEEP_BASELINE)


def _figures(study: StudyContext, schedule: Schedule, winner: Winner) -> tuple[bool, Ratio | None, Ratio | None]:
    """Whether these finals could prove anything, the sample efficiency of their candidate, and how much sooner it
    reaches a loss by what decides: what is told is by the speed that is told.

    The efficiency's interval is wrong as rarely as the finals' share of the permitted error says, over all batches that
    were screened: the best of several is a lucky one. So is the speed's, by which that it is faster was decided.
    """
    trial = candidate_of(schedule, winner)
    efficiency = _efficiency(study, schedule, trial)
    contest = contest_of(schedule, trial.config, study.trials, study.plan.objective)
    speed = contest.bound if contest is not None else winner.speedup
    sooner = time_to_loss(speed, efficiency) if efficiency is not None else None
    screened = screen_of(study, trial)
    passed = screened is not None and screened.verdict is Noninferiority.PASS
    return not winner.label and passed, efficiency, sooner


def _efficiency(study: StudyContext, schedule: Schedule, trial: Trial) -> Ratio | None:
    screened = screen_of(study, trial)
    if screened is None:
        return None
    pairs = recorded_pairs(study, trial, screened.samples)[: screened.seeds]
    error = (1 - CONFIDENCE) * opening_share(schedule.opening) / max(1, len(_screened_configs(study)))
    return sample_efficiency(pairs, error)


def _screened_configs(study: StudyContext) -> set[Config]:
    """The larger batches that any screen has looked at."""
    configs = {trial.config for trial in study.trials if trial.phase is Phase.SCREEN}
    return {config for config in configs if study.space is not None and study.space.is_larger(config)}
