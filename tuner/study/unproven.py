"""What the fastest config lacked for a proof, where that was time: with which budget the same command has it."""

from __future__ import annotations

import math

from tuner.analysis.accuracy import MOST_SEEDS, SEEDS, Screened
from tuner.analysis.comparison import failed_in
from tuner.analysis.stats import Noninferiority
from tuner.formatting import config_text
from tuner.model import Trial, Verdict, Winner
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.context import StudyContext
from tuner.study.screens import lengths_of, missing_s


def note_lack_of_time(study: StudyContext, fastest: Trial, winner: Winner | None) -> None:
    """Names the budget that would do, where nothing but time was lacking to prove the fastest config."""
    screened = next((result for result in study.screened if result.config == fastest.config), None)
    if study.budget.seconds is None or not _lacked_time(study, fastest, screened, winner):
        return
    # A study that goes on measures the script as written once more.
    time = study.time
    wanted_s = study.budget.elapsed(time.now) + time.runs.trial_s() + _screens_s(study, fastest, screened)
    wanted_s += time.finals_s(fastest.config, max(0, FEWEST_ROUNDS - time.rounds_done(fastest.config)))
    study.note(
        f"with --budget {math.ceil(wanted_s / 60) + 1}m the same command goes on, and has the time to prove"
        f" {config_text(fastest.config)}"
    )


def _lacked_time(study: StudyContext, fastest: Trial, screened: Screened | None, winner: Winner | None) -> bool:
    """Whether its finals had fewer rounds than prove anything, and neither they nor its screen said more against it."""
    if winner is not None and winner.verdict is Verdict.IMPROVED and winner.config == fastest.config:
        return False  # proven in earlier finals
    if study.time.rounds_done(fastest.config) >= FEWEST_ROUNDS:
        return False
    if fastest.config in failed_in(study.trials, study.plan.objective):
        return False
    return screened is None or screened.verdict is Noninferiority.PASS or screened.lacked_time


def _screens_s(study: StudyContext, fastest: Trial, screened: Screened | None) -> float:
    """What its screen lacks takes: of one that was left open for lack of time more seeds, or the longer one."""
    if not study.time.needs_screen(fastest.config) or (screened is not None and not screened.lacked_time):
        return 0.0
    lengths = lengths_of(study, fastest)
    if screened is None:
        return missing_s(study, fastest, SEEDS, lengths[0])
    if not screened.seeds:
        return missing_s(study, fastest, SEEDS, lengths[-1])
    return missing_s(study, fastest, MOST_SEEDS, screened.samples)
