"""What was lacking for a proof, or for any trial, where that was time: with which budget the same command has it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.analysis.accuracy import MOST_SEEDS, SEEDS, Screened
from tuner.analysis.gain import WORTH_HAVING
from tuner.analysis.learning import gives_no_loss
from tuner.analysis.stats import Noninferiority
from tuner.formatting import config_text
from tuner.model import Phase, Trial, Verdict, Winner
from tuner.result import LackOfTime
from tuner.search.history import History
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.context import StudyContext
from tuner.study.schedules import Contest, going_on, lacked_time, through
from tuner.study.screens import lengths_of, missing_s
from tuner.study.study_time import was_late


def lack_of_time(study: StudyContext, candidates: Sequence[Trial], winner: Winner | None) -> LackOfTime | None:
    """What only time was lacking for a proof of: the fastest of the candidates that was neither judged nor rejected.
    ``candidates``: best first; ``winner``: what the finals say.

    Notes the budget with which the same command proves it, or what goes before it. None, and nothing is noted, where
    the first of the candidates was judged and no other is worth more: with more time that judgement would stand; nor
    where it neither read nor is expected to be faster by what is worth having.
    """
    assert study.space is not None
    history = History(study.space, study.plan.objective, study.trials)
    left = [trial for trial in candidates if not _is_rejected(study, trial)]
    begun_with = _begun_with(study, winner)
    if through(study):
        left = [trial for trial in left if lacked_time(study, history, [trial])]
    elif begun_with is not None:
        left.sort(key=lambda trial: -(history.expected(trial) or 0.0))
    if study.budget.seconds is None or not left or _is_judged(study, left[0], winner):
        return None
    fastest = left[0]
    read = study.track.gain(fastest) or 0.0
    if max(read, history.expected(fastest) or 0.0) <= WORTH_HAVING:
        return None
    time = study.time
    larger = time.first_larger
    first = larger or begun_with or fastest
    finals_s = time.finals_s(first.config, max(0, FEWEST_ROUNDS - time.rounds_done(first.config)))
    minutes = _minutes_with(study, time.proof_s(larger.config) if larger else _screens_s(study, first) + finals_s)
    named = config_text(first.config) + (" (tier 3)" if larger else "")
    named += f", before {config_text(fastest.config)}" if first != fastest else ""
    study.note(f"with --budget {minutes}m the same command has the time to prove {named}")
    return LackOfTime(fastest.config, read, 60.0 * minutes, first.config)


def budget_to_try(study: StudyContext) -> float | None:
    """With that budget, in seconds, the same command has the time for a trial and its proof, where the study's was over
    before any was through; None otherwise.
    """
    space, time, trials = study.space, study.time, study.budget.trials
    tried = any(trial.phase is Phase.SEARCH and not was_late(trial) for trial in study.trials)
    if study.budget.seconds is None or space is None or not space.axes or tried or trials == 1:
        return None
    if not time.search_is_over():
        return None
    return 60.0 * _minutes_with(study, time.runs.trial_s() + time.unfound_proof_s())


def _minutes_with(study: StudyContext, seconds: float) -> int:
    """The budget in which a study that goes on has so many seconds: it measures the script as written once more."""
    time = study.time
    return math.ceil((study.budget.elapsed(time.now) + time.runs.trial_s() + seconds) / 60) + 1


def _begun_with(study: StudyContext, winner: Winner | None) -> Trial | None:
    """The candidate, the best so far, of finals that had no time for three rounds and would go on before any others."""
    numbers = going_on(study, Contest.KEEPING)
    begun = [trial for trial in study.trials if trial.number in numbers and not _is_rejected(study, trial)]
    if not begun or through(study):
        return None
    return next((trial for trial in begun if winner is not None and trial.config == winner.config), begun[0])


def _is_rejected(study: StudyContext, trial: Trial) -> bool:
    """Whether its screen, or its finals, said more against it than that time was lacking. Whatever needs a screen gets
    none once one is of no use, by the script as written alone, and none that is like what was rejected. Where the
    script shows no loss, and no metric is bounded, its screen would be of no use.
    """
    if study.gone(trial.config):
        return True
    screened, needs_screen = _screened(study, trial), study.time.needs_screen(trial.config)
    if screened is None:
        is_of_no_use = any(not one.seeds and not one.lacked_time for one in study.screened)
        return needs_screen and (is_of_no_use or _shows_nothing(study))
    return screened.verdict is not Noninferiority.PASS and not screened.lacked_time


def _shows_nothing(study: StudyContext) -> bool:
    return gives_no_loss(study.baseline) and not study.plan.accuracy.metrics


def _is_judged(study: StudyContext, trial: Trial, winner: Winner | None) -> bool:
    """Whether its finals, these or earlier ones, had the rounds that can prove something."""
    is_proven = winner is not None and winner.verdict is Verdict.IMPROVED and winner.config == trial.config
    return is_proven or study.time.rounds_done(trial.config) >= FEWEST_ROUNDS


def _screened(study: StudyContext, trial: Trial) -> Screened | None:
    return next((result for result in study.screened if result.config == trial.config), None)


def _screens_s(study: StudyContext, fastest: Trial) -> float:
    """What its screen lacks takes: of one that was left open for lack of time more seeds, or the longer one."""
    screened = _screened(study, fastest)
    if not study.time.needs_screen(fastest.config) or (screened is not None and not screened.lacked_time):
        return 0.0
    lengths = lengths_of(study, fastest)
    if screened is None:
        return missing_s(study, fastest, SEEDS, lengths[0])
    if not screened.seeds:
        return missing_s(study, fastest, SEEDS, lengths[-1])
    more_s = missing_s(study, fastest, MOST_SEEDS, screened.samples)
    return more_s or missing_s(study, fastest, SEEDS, lengths[-1])
