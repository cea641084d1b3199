"""Runs the screens: a config that changes more than speed learns beside the script as written, on the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from tuner.analysis.accuracy import (
    MOST_SEEDS,
    SEEDS,
    AccuracyLimits,
    Screened,
    is_settled,
    judge,
    untold,
)
from tuner.analysis.checks import Pair
from tuner.analysis.comparison import left_open
from tuner.analysis.learning import Descent, descent_of
from tuner.analysis.loss_checks import sample_efficiency
from tuner.analysis.schedule import CONFIDENCE, opening_share
from tuner.analysis.stats import Noninferiority
from tuner.events import Screening
from tuner.formatting import config_text, gain_text
from tuner.model import BASELINE, Config, Phase, Trial
from tuner.search.history import History
from tuner.search.leaner import Leaner
from tuner.search.twins import tells_no_more
from tuner.storage.database import NewTrial
from tuner.study.budget import FEWEST_ROUNDS, keeping_batch, larger_step
from tuner.study.context import StudyContext
from tuner.study.lengths import screen_lengths, screened_samples
from tuner.study.metrics import metrics_of
from tuner.study.schedules import Contest, going_on, in_order, through

CANDIDATES = 3
"""So many candidates for each place in the finals are screened, if those before them fail."""


def screen_candidates(study: StudyContext) -> tuple[Trial, ...]:
    """Screens the best trials, and sets ``study.screened`` and ``study.fit``. Returns the candidates, best first.

    The screens go on until as many candidates are fit as the finals take; those that need none are fit without, and a
    near-twin of a better one that is fit is passed over. Then come those that single trials leave open, where there is
    time that nothing else uses. Raises as ``StudyContext.execute``. A candidate for which
    there was no time, with the fewest rounds of the finals that have to follow, has no screen; neither have those after
    one that showed screens to tell nothing of this script.
    """
    plan = study.plan
    assert study.space is not None
    kept, history = keeping_batch(study.trials, study.space), History(study.space, plan.objective, study.trials)
    candidates, continued = in_order(study, history, kept)
    told = _told_by_better(study, continued, history, Leaner(history))
    if candidates and _gives_way_to(study, history, candidates[0], candidates[1:], told) is None:
        _say_which_is_first(study, history, candidates)
    study.screened = tuple(_screens(study, history, candidates, told))
    passed = [screened.config for screened in study.screened if screened.verdict is Noninferiority.PASS]
    may_meet = [one for one in candidates if not study.time.needs_screen(one.config) or one.config in passed]
    fit: list[Trial] = []
    for number, trial in enumerate(may_meet, 1):
        instead = None if fit else _gives_way_to(study, history, trial, may_meet[number:], told)
        if instead is not None:
            _note_way_given(study, trial, instead)
        elif not told(trial, [one.config for one in fit]):
            fit.append(trial)
    study.fit = tuple(fit)
    _add_left_open(study, kept, continued)
    return candidates


def _say_which_is_first(study: StudyContext, history: History, candidates: Sequence[Trial]) -> None:
    """Why another one than the fastest trial is proven first."""
    read, first = study.best, next(iter(candidates), None)
    if read is None or first is None or first == read:
        return
    expected, instead = history.expected(first) or 0.0, history.expected(read) or 0.0
    if expected > instead:
        study.note(
            f"trial {first.number} comes before trial {read.number}, which read faster: by what configs like them came"
            f" to, {gain_text(expected)} and {gain_text(instead)} are expected"
        )


def _add_left_open(study: StudyContext, trials: Sequence[Trial], continued: tuple[int, ...]) -> None:
    """Makes those fit as well of which finals can say whether they are faster, and single trials can't.

    Of small gains these are as many as the faster ones: a trial of what is 3% faster, read to 5%, says less than 1 each
    fourth time; and who is passed over for a better one was read as badly. Those that finals have begun with stay.
    """
    for trial in left_open(trials, study.plan.objective, study.fit, going_on=continued):
        if len(study.fit) >= study.plan.finalists:
            return
        known = [screened.config for screened in study.screened]
        if trial.config in known:
            continue
        may_meet = trial.number in continued or _has_time_beside(study, trial)
        if study.time.needs_screen(trial.config):
            tells = len(known) < CANDIDATES * study.plan.finalists and all(one.seeds for one in study.screened)
            if screen_of(study, trial) is None and not (may_meet and tells):
                continue
            result = screen(study, trial)
            if result is None:
                continue
            study.screened = (*study.screened, result)
            study.tell(Screening(trial, result))
            may_meet = may_meet and result.verdict is Noninferiority.PASS
        if may_meet:
            study.fit = (*study.fit, trial)


def _has_time_beside(study: StudyContext, trial: Trial) -> bool:
    """Whether the budget has time for all rounds of finals with it and all that are fit; for the usual ones where it
    would be alone.
    """
    if study.time.left_s is None:
        return False
    screens_s = 0.0
    if study.time.needs_screen(trial.config):
        screens_s = missing_s(study, trial, SEEDS, lengths_of(study, trial)[0])
    configs = [BASELINE, *(one.config for one in study.fit), trial.config]
    rounds = study.plan.most_rounds if study.fit else study.time.rounds_to_tell()
    return study.time.fits(screens_s + rounds * study.time.runs.round_s(configs))


def limits_of(study: StudyContext, candidate: Trial) -> AccuracyLimits:
    """What the candidate is held to. A larger effective batch may learn less from each sample than its speed brings:
    it has to reach a loss sooner, and to keep to the bounds of the user's own metrics.
    """
    limits = study.plan.accuracy
    if study.space is None or not study.space.is_larger(candidate.config):
        return limits
    least = min(1.0, 1 / max(1.0, study.track.gain(candidate) or 1.0))
    return replace(limits, max_loss_increase=None, min_sample_efficiency=least, efficiency_alone=True)


def lengths_of(study: StudyContext, candidate: Trial) -> tuple[int, ...]:
    """The samples of its screens."""
    step = larger_step(candidate.config, study.space)
    return screen_lengths(study.plan, study.baseline, step, screened_samples(study.trials))


def _judged(study: StudyContext, candidate: Trial, pairs: Sequence[Pair], samples: int) -> Screened:
    larger = study.space is not None and study.space.is_larger(candidate.config)
    return replace(judge(candidate.config, pairs, limits_of(study, candidate), samples), by_time=larger)


def _told_by_better(
    study: StudyContext, continued: Collection[int], history: History, leaner: Leaner
) -> Callable[[Trial, Sequence[Config]], bool]:
    """Whether a candidate is a near-twin of one of these better ones, which is proven in its place, or has only knobs
    more than one of them that bring nothing.

    Those that finals have begun with stay in them: versions before this one let near-twins in.
    """

    def told(trial: Trial, better: Sequence[Config]) -> bool:
        if trial.number in continued:
            return False
        idle = any(leaner.is_as_good(one, trial.config) for one in better)
        return idle or tells_no_more(trial.config, better, history.twins, study.tiers)

    return told


def _screens(
    study: StudyContext, history: History, candidates: Sequence[Trial],
    told: Callable[[Trial, Sequence[Config]], bool],
) -> list[Screened]:  # fmt: skip
    screened: list[Screened] = []
    fit: list[Config] = []
    unscreened = False
    for number, trial in enumerate(candidates, 1):
        if len(fit) >= study.plan.finalists:
            break
        if told(trial, fit):
            continue
        needs_screen = study.time.needs_screen(trial.config)
        instead = None if fit else _gives_way_to(study, history, trial, candidates[number:], told)
        is_known = needs_screen and not missing_s(study, trial, SEEDS, lengths_of(study, trial)[0])
        if instead is not None and not is_known:
            if needs_screen:  # of the others it is asked again, once it is known how those learn
                _note_way_given(study, trial, instead)
            continue
        if not needs_screen:
            fit.append(trial.config)
            continue
        if len(screened) >= CANDIDATES * study.plan.finalists or any(not result.seeds for result in screened):
            continue
        others = [one for one in candidates if one.config in fit]
        if fit and not _leaves_time_for_finals(study, [*others, trial]):
            continue
        result = screen(study, trial)
        if result is None:
            if not fit and not unscreened:
                study.note(f"no time left to compare how {config_text(trial.config)} learns, and to prove it")
            unscreened = True
            continue
        screened.append(result)
        if result.verdict is Noninferiority.PASS and instead is None:
            fit.append(trial.config)
        study.tell(Screening(trial, result))
    return screened


def _note_way_given(study: StudyContext, candidate: Trial, instead: Trial) -> None:
    first, other = config_text(candidate.config), config_text(instead.config)
    study.note(f"{first} gives way to {other}: its proof may not fit into the time that is left")


def _gives_way_to(
    study: StudyContext, history: History, candidate: Trial, others: Sequence[Trial],
    told: Callable[[Trial, Sequence[Config]], bool],
) -> Trial | None:  # fmt: skip
    """The one whose proof is sure to fit into what is left, where the candidate's isn't, and which is worth as much.

    As much as what may be proven with a chance of about one half: the square of the gain to expect of it is as large.
    Any other is worth as much as one whose finals can't come off. One with which finals have begun stays in them.
    """
    proof_s, time = _proof_s(study, candidate), study.time

    def may_fit(trial: Trial) -> bool:
        return time.may_fit(_proof_s(study, trial), of=[BASELINE, trial.config])

    def is_sure_to_fit(trial: Trial) -> bool:
        return time.is_sure_to_fit(_proof_s(study, trial), of=[BASELINE, trial.config])

    if candidate.number in going_on(study, Contest.KEEPING) or is_sure_to_fit(candidate):
        return None
    instead = [other for other in others if not told(other, [])]
    if proof_s <= time.finals_s(candidate.config, FEWEST_ROUNDS) and not may_fit(candidate):
        return next(filter(may_fit, instead), None)
    gain = history.expected(candidate) or 1.0
    worth = [other for other in instead if (history.expected(other) or 1.0) ** 2 >= gain]
    return next(filter(is_sure_to_fit, worth), None)


def _proof_s(study: StudyContext, candidate: Trial) -> float:
    """What is left of its proof takes: of its screen what isn't in the record, and the fewest rounds of the finals."""
    if candidate.number in through(study):
        return 0.0
    samples = lengths_of(study, candidate)[0]
    finals_s = study.time.finals_s(candidate.config, FEWEST_ROUNDS)
    if not study.time.needs_screen(candidate.config) or screen_of(study, candidate) is not None:
        return finals_s
    return finals_s + missing_s(study, candidate, SEEDS, samples)


def missing_s(study: StudyContext, candidate: Trial, seeds: int, samples: int) -> float:
    """What the runs of so many seeds of its screen take that aren't in the record."""
    if _is_settled_by_record(study, candidate, samples):
        return 0.0
    wanted = [run for seed in range(1, seeds + 1) for run in _runs(study, candidate, seed, samples)]
    return sum(study.time.runs.screen_s(run.config, samples) for run in wanted if study.store.find(run) is None)


def _leaves_time_for_finals(study: StudyContext, candidates: Sequence[Trial]) -> bool:
    """Whether the last one's screen leaves time for finals of them all: else those before it get more rounds.

    A screen that is in the record already takes none.
    """
    last = candidates[-1]
    known = screen_of(study, last) is not None
    screens_s = 0.0 if known else missing_s(study, last, SEEDS, lengths_of(study, last)[0])
    if not screens_s:
        return True
    configs = [BASELINE, *(candidate.config for candidate in candidates)]
    finals_s = study.time.rounds_to_tell() * study.time.runs.round_s(configs)
    return study.time.fits(screens_s + finals_s)


def screen_of(study: StudyContext, candidate: Trial) -> Screened | None:
    """What the candidate's screen showed, this time or, by the record, earlier; None where it has or needs none."""
    if not study.time.needs_screen(candidate.config):
        return None
    known = next((screened for screened in study.screened if screened.config == candidate.config), None)
    if known is not None:
        return known
    for samples in lengths_of(study, candidate):
        pairs = recorded_pairs(study, candidate, samples)
        if pairs and is_settled(candidate.config, pairs):
            return _judged(study, candidate, pairs, samples)
        seeds = MOST_SEEDS if len(pairs) >= MOST_SEEDS else SEEDS
        if len(pairs) >= seeds:
            return _judged(study, candidate, pairs[:seeds], samples)
    return None


def note_unseen(study: StudyContext, baseline: Trial) -> None:
    """Says at once which bounded metrics the script as written didn't give: a screen of them would show nothing."""
    unseen = study.plan.accuracy.unseen(metrics_of(study, baseline)[1])
    if unseen:
        study.note(f"no screen can pass as long as this is so: {unseen}")


def screen(study: StudyContext, candidate: Trial) -> Screened | None:
    """The verdict on a candidate; None where there is no time for it.

    The script as written is looked at first: where it shows nothing to hold a candidate to, not even over the longest
    screen that there is time for, no candidate is run.
    """
    limits = limits_of(study, candidate)
    nothing: Screened | None = None
    for samples in lengths_of(study, candidate):
        if _lacks_time(study, candidate, SEEDS, samples):
            return replace(nothing, lacked_time=True) if nothing is not None else None
        first = study.run_once(_runs(study, candidate, 1, samples)[0])
        as_written = [_paired(study, 1, first, first)]
        nothing = untold(candidate.config, as_written, limits, samples)
        if nothing is None:
            return _compared(study, candidate, samples)
        if not limits.metrics and descent_of([as_written[0].baseline]) is Descent.MIXED:
            break
    return nothing


def _compared(study: StudyContext, candidate: Trial, samples: int) -> Screened | None:
    """The verdict; None where runs take so long that there is no time for the fewest, and for a proof after them.

    After the fewest it may be left open for lack of time alone.
    """
    pairs: list[Pair] = []
    for count in (SEEDS, MOST_SEEDS):
        for seed in range(len(pairs) + 1, count + 1):
            if _lacks_time(study, candidate, count, samples):
                if len(pairs) < SEEDS:
                    return None
                judged = _judged(study, candidate, pairs[:SEEDS], samples)
                return replace(judged, lacked_time=judged.verdict is Noninferiority.INCONCLUSIVE)
            pairs.append(_pair(study, candidate, seed, samples))
            if is_settled(candidate.config, pairs):
                return _judged(study, candidate, pairs, samples)
        told = _judged(study, candidate, pairs, samples).verdict is not Noninferiority.INCONCLUSIVE
        if told and _is_sharp(study, candidate, pairs):
            break
    return _judged(study, candidate, pairs, samples)


def _is_sharp(study: StudyContext, candidate: Trial, pairs: Sequence[Pair]) -> bool:
    """Whether a larger effective batch is known well enough for what finals of a second opening hold it to.

    Of the others only the verdict counts, and of what fails nothing more has to be known.
    """
    if study.space is None or not study.space.is_larger(candidate.config):
        return True
    found = sample_efficiency(pairs, (1 - CONFIDENCE) * opening_share(2))
    gain = study.track.gain(candidate) or 1.0
    return found is None or found.low * gain > 1.0 or found.ratio * gain <= 1.0


def _lacks_time(study: StudyContext, candidate: Trial, seeds: int, samples: int) -> bool:
    """Whether there is no time for the runs of so many seeds that are missing, and for the fewest rounds after them.

    What the runs so far have settled lacks none: a study that is derived again comes to the same verdict.
    """
    screens_s = missing_s(study, candidate, seeds, samples)
    finals_s = study.time.finals_s(candidate.config, FEWEST_ROUNDS)
    return screens_s > 0 and not study.time.may_fit(finals_s, screens_s, of=[BASELINE, candidate.config])


def _is_settled_by_record(study: StudyContext, candidate: Trial, samples: int) -> bool:
    recorded = recorded_pairs(study, candidate, samples)
    if recorded and is_settled(candidate.config, recorded):
        return True
    first = study.store.find(_runs(study, candidate, 1, samples)[0])
    if first is None:
        return False
    as_written = [_paired(study, 1, first, first)]
    return untold(candidate.config, as_written, limits_of(study, candidate), samples) is not None


def _runs(study: StudyContext, candidate: Trial, seed: int, samples: int) -> tuple[NewTrial, NewTrial]:
    """A pair: the script as written, which all candidates share, and the candidate."""
    baseline = NewTrial(Phase.SCREEN, BASELINE, f"screen over {samples} samples", seed=seed, samples=samples)
    why = f"screen of trial {candidate.number} over {samples} samples"
    return baseline, replace(baseline, config=candidate.config, why=why, group=(candidate.number,))


def recorded_pairs(study: StudyContext, candidate: Trial, samples: int) -> list[Pair]:
    """The pairs that were run already, from the first seed on."""
    pairs: list[Pair] = []
    for seed in range(1, MOST_SEEDS + 1):
        before, after = (study.store.find(run) for run in _runs(study, candidate, seed, samples))
        if before is None or after is None:
            break
        pairs.append(_paired(study, seed, before, after))
    return pairs


def _pair(study: StudyContext, candidate: Trial, seed: int, samples: int) -> Pair:
    before, after = (study.run_once(run) for run in _runs(study, candidate, seed, samples))
    return _paired(study, seed, before, after)


def _paired(study: StudyContext, seed: int, before: Trial, after: Trial) -> Pair:
    assert before.outcome is not None and after.outcome is not None
    (firsts, lasts), (_, ends) = metrics_of(study, before), metrics_of(study, after)
    return Pair(seed, before.outcome, after.outcome, lasts, ends, firsts)
