"""Chooses the candidates of the finals: in which order they are screened, and which of them the time left goes to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tuner.analysis.accuracy import SEEDS, Screened
from tuner.analysis.comparison import left_open
from tuner.analysis.stats import Noninferiority
from tuner.analysis.tiers import holds
from tuner.formatting import config_text, count_text, gain_text
from tuner.model import BASELINE, Config, Trial
from tuner.search.history import History
from tuner.search.leaner import Leaner
from tuner.search.twins import tells_no_more
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.context import StudyContext
from tuner.study.schedules import Contest, going_on, in_order, through
from tuner.study.screens import keep_screen, lengths_of, missing_s, screen, screen_of
from tuner.study.study_time import keeping_batch

CANDIDATES = 3
"""So many candidates for each place in the finals are screened, if those before them fail."""


def screen_candidates(study: StudyContext) -> tuple[Trial, ...]:
    """Screens the best trials, and sets ``study.fit``; what screens show is in ``study.screened`` as soon as it is
    known. Returns the candidates, best first.

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
    _run_screens(study, history, candidates, told)
    _note_passed_over(study, candidates)
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
    if read is None or first is None or first == read or study.rejects(read.config):
        return
    expected, instead = history.expected(first) or 0.0, history.expected(read) or 0.0
    if expected <= instead:
        return
    if not read.config:
        study.note(
            f"trial {first.number} is to be proven although it read no faster than the script as written: by what"
            f" configs like it came to, {gain_text(expected)} is expected"
        )
        return
    told = [gain_text(expected), gain_text(instead)]
    both = f"{told[0]} is expected of both" if told[0] == told[1] else f"{told[0]} and {told[1]} are expected"
    study.note(
        f"trial {first.number} comes before trial {read.number}, which read faster: by what configs like them came"
        f" to, {both}"
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
        if trial.config in known or study.rejects(trial.config):
            continue
        may_meet = trial.number in continued or _has_time_beside(study, trial)
        if study.time.needs_screen(trial.config):
            tells = len(known) < CANDIDATES * study.plan.finalists and all(one.seeds for one in study.screened)
            if screen_of(study, trial) is None and not (may_meet and tells):
                continue
            result = screen(study, trial)
            if result is None:
                continue
            keep_screen(study, trial, result)
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


def _run_screens(
    study: StudyContext, history: History, candidates: Sequence[Trial],
    told: Callable[[Trial, Sequence[Config]], bool],
) -> None:  # fmt: skip
    known = {one.config for trial in candidates if (one := screen_of(study, trial)) is not None}
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
        is_full = sum(result.config not in known for result in screened) >= CANDIDATES * study.plan.finalists
        passed_over = trial.config not in known and (is_full or study.rejects(trial.config))
        if passed_over or any(not result.seeds for result in screened):
            continue
        others = [one for one in candidates if one.config in fit]
        if fit and not _leaves_time_for_finals(study, [*others, trial]):
            continue
        result = screen(study, trial)
        if result is None:
            if not (fit or unscreened or trial.config in study.passed_over):
                study.passed_over |= {trial.config}
                study.note(f"no time left to compare how {config_text(trial.config)} learns, and to prove it")
            unscreened = True
            continue
        screened.append(result)
        if result.verdict is Noninferiority.PASS and instead is None:
            fit.append(trial.config)
        keep_screen(study, trial, result)


def _note_passed_over(study: StudyContext, candidates: Sequence[Trial]) -> None:
    """Which candidates have no screen, since another one with all that they change beside speed was rejected, or left
    open; once. That a screen tells nothing of any was said where that was seen.
    """
    if study.untold:
        return
    alike = [one.config for one in candidates if study.rejects(one.config) and screen_of(study, one) is None]
    new = [config for config in alike if config not in study.passed_over and study.time.needs_screen(config)]
    if new:
        study.passed_over |= {*new}
        others = f", nor {count_text(len(new) - 1, 'other')}" if len(new) > 1 else ""
        first = config_text(new[0])
        is_open = any(holds(new[0], part) for part in study.unshown)
        said = "not shown to learn as well" if is_open else "rejected"
        study.note(f"{first} isn't screened{others}: what it changes beside speed was {said} with other knobs")


def _note_way_given(study: StudyContext, candidate: Trial, instead: Trial) -> None:
    first, other = config_text(candidate.config), config_text(instead.config)
    study.note(f"{first} gives way to {other}: its proof may not fit into the time that is left")


def _gives_way_to(
    study: StudyContext, history: History, candidate: Trial, others: Sequence[Trial],
    told: Callable[[Trial, Sequence[Config]], bool],
) -> Trial | None:  # fmt: skip
    """The one whose proof is sure to fit into what is left, where the candidate's isn't, and which is worth as much.

    As much as what may be proven with a chance of about one half: the square of the gain to expect of it is as large.
    Any other is worth as much as one whose finals can't come off, but none that finals have judged: that stands. One
    with which finals have begun stays in them.
    """
    proof_s, time = _proof_s(study, candidate), study.time

    def may_fit(trial: Trial) -> bool:
        return time.may_fit(_proof_s(study, trial), of=[BASELINE, trial.config])

    def is_sure_to_fit(trial: Trial) -> bool:
        return time.is_sure_to_fit(_proof_s(study, trial), of=[BASELINE, trial.config])

    if candidate.number in going_on(study, Contest.KEEPING) or is_sure_to_fit(candidate):
        return None
    instead = [
        other for other in others
        if not (told(other, []) or study.rejects(other.config) or time.rounds_done(other.config) >= FEWEST_ROUNDS)
    ]  # fmt: skip
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


def _leaves_time_for_finals(study: StudyContext, candidates: Sequence[Trial]) -> bool:
    """Whether the last one's screen leaves time for finals of them all that tell the best of them well: else those
    before it get more rounds.

    A screen that is in the record already takes none.
    """
    last = candidates[-1]
    known = screen_of(study, last) is not None
    screens_s = 0.0 if known else missing_s(study, last, SEEDS, lengths_of(study, last)[0])
    if not screens_s:
        return True
    configs = [BASELINE, *(candidate.config for candidate in candidates)]
    finals_s = study.time.rounds_to_tell(len(candidates)) * study.time.runs.round_s(configs)
    return study.time.fits(screens_s + finals_s)
