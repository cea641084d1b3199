"""Whether a study of nothing but a profile's config still shows what the profile says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tuner.analysis.learning import LATER
from tuner.analysis.stats import Noninferiority
from tuner.formatting import count_text, gain_text, interval_text, screened_text
from tuner.knowledge import FREE, changes_batch, samples_per_step
from tuner.model import BASELINE, Config, Evidence, Outcome, OutcomeKind, Phase, Ratio, Trial, Verdict, Winner
from tuner.objective import RATE
from tuner.result import StudyResult

_OF_NO_CONFIG = frozenset({OutcomeKind.UNFINISHED, OutcomeKind.INFRASTRUCTURE, OutcomeKind.TIMED_OUT})
"""Of these the study's time, the machine or the limit of a run's time may be the cause."""
_BY_OTHERS = frozenset({"signal-kill", "worker-killed", "crowded-out"})
_TOO_SHORT = "too-short"


class Answer(StrEnum):
    """What a verification says of the profile."""

    HOLDS = "verified"
    FAILS = "not true any more"
    OPEN = "can't tell"


@dataclass(frozen=True)
class Claim:
    """What is held to be true: that ``config`` is so many times as fast (``least``) at least, by its whole interval.

    ``proven`` is the ratio that the profile has, None in one of an earlier version. ``in_vain``: knobs that met nothing
    to turn when it was proven, either. ``devices``: on so many of one process it was proven.
    """

    config: Config
    least: float
    proven: Ratio | None
    in_vain: frozenset[str] = frozenset()
    devices: int = 1

    def is_missed_by(self, ratio: Ratio) -> bool:
        """Whether so much is surely less than what is held to be true, or than what was proven."""
        return ratio.high < max(self.least, self.proven.low if self.proven is not None else 0.0)


@dataclass(frozen=True)
class Verification:
    """The answer, and why, for people."""

    answer: Answer
    why: str


def verification(result: StudyResult, claim: Claim) -> Verification:
    """What a study whose search had this config alone says of the claim.

    It fails where the config doesn't work any more, a knob of it isn't in effect, it learns worse, or it is surely less
    fast than was proven. Whatever isn't shown either way is open: a study that was disturbed, or lacked the time.
    """
    now = result.knowledge.devices
    if now != claim.devices:
        return Verification(Answer.OPEN, f"proven on {count_text(claim.devices, 'device')} of one process, now {now}")
    failed = next(_failures(result, claim), "")
    if failed and result.broke_it:
        own = f"autotune broke the script, and left out: {', '.join(result.broke_it)} ({result.fault})"
        return Verification(Answer.OPEN, f"{failed}; {own}")
    if failed:
        return Verification(Answer.FAILS, failed)
    winner = result.winner
    if winner is not None and winner.config == claim.config:
        return _by_finals(winner, claim, result.objective.gains_of)
    open_screen = next((s for s in result.screened if s.config == claim.config), None)
    if open_screen is not None and open_screen.verdict is not Noninferiority.PASS:
        return Verification(Answer.OPEN, screened_text(open_screen))
    ended = next((each for each in _runs(result, claim.config) if not each[1].complete), None)
    if ended is not None:
        return Verification(Answer.OPEN, _ended_text(*ended))
    return _by_trial(result, claim)


def _failures(result: StudyResult, claim: Claim) -> Iterator[str]:
    """What doesn't work of the config, or isn't as good, whatever its speed.

    Where the script as written failed in the finals as well, nothing that failed says anything of the config.
    """
    written = result.knowledge.as_written
    if result.study.limits.effective_batch != FREE and changes_batch(claim.config, result.knowledge):
        own = samples_per_step({**written, **claim.config})
        yield f"it trains on {own} samples a step, and the script as written on {samples_per_step(written)}"
    both = any(_has_failed(outcome) for _, outcome in _runs(result, BASELINE))
    for trial, outcome in _runs(result, claim.config):
        if _has_failed(outcome) and not both:
            yield _ended_text(trial, outcome)
        for report in trial.measurement.knobs if trial.measurement is not None else ():
            is_vain = report.evidence is Evidence.NOT_APPLICABLE and report.knob not in claim.in_vain
            if is_vain or report.evidence is Evidence.CONTRADICTED:
                yield f"{report.knob} isn't in effect: {report.reason or report.evidence}"
    for screened in result.screened:
        if screened.config == claim.config and screened.verdict is Noninferiority.FAIL:
            yield screened_text(screened)


def _runs(result: StudyResult, config: Config) -> list[tuple[Trial, Outcome]]:
    """The config's runs beside the script as written that have ended; of the latter those of the finals."""
    phases = (Phase.SEARCH, Phase.FINALS)
    trials = [trial for trial in result.trials if trial.config == config and trial.phase in phases]
    return [(trial, trial.outcome) for trial in trials if trial.outcome is not None]


def _ended_text(trial: Trial, outcome: Outcome) -> str:
    return f"trial {trial.number} ended as {outcome.kind}: {outcome.detail}"


def _has_failed(outcome: Outcome) -> bool:
    """Whether that says something of the config: a lack of time, and what others do to a run, don't, nor does a
    training that is too short for a figure: a faster one is over sooner.
    """
    return not (outcome.complete or outcome.kind in _OF_NO_CONFIG or outcome.reason in (*_BY_OTHERS, _TOO_SHORT))


def _by_finals(winner: Winner, claim: Claim, gains_of: str) -> Verification:
    told = _told(winner.speedup, claim, gains_of)
    if winner.label:
        return Verification(Answer.FAILS if winner.label == LATER else Answer.OPEN, f"{told}: {winner.label}")
    if winner.verdict is Verdict.IMPROVED and winner.speedup.low >= claim.least:
        return Verification(Answer.HOLDS, told)
    return Verification(Answer.FAILS if claim.is_missed_by(winner.speedup) else Answer.OPEN, told)


def _by_trial(result: StudyResult, claim: Claim) -> Verification:
    """Without finals: the config seemed no faster in its trial, or there was no time for more."""
    searched = [t for t in result.trials if t.config == claim.config and t.phase is Phase.SEARCH and t.measurement]
    measured = searched[-1].measurement if searched else None
    reference = measured.reference if measured is not None else None
    if reference is None:
        return Verification(Answer.OPEN, result.cannot_tell or result.why)
    told = f"in a single trial {_told(reference.gain, claim, RATE.gains_of)}"
    if result.cannot_tell:
        return Verification(Answer.OPEN, f"{told}; {result.cannot_tell}")
    if result.lacked_time is not None:  # it is as good as to be worth finals: these would have told
        return Verification(Answer.OPEN, f"{told}; no time was left for its proof")
    by_speed = result.objective.is_rate and result.objective.planned_samples is None
    if by_speed and claim.is_missed_by(reference.gain):
        return Verification(Answer.FAILS, told)
    return Verification(Answer.OPEN, f"{told}; {result.why}" if result.why else told)


def _told(ratio: Ratio, claim: Claim, gains_of: str) -> str:
    now = f"{gain_text(ratio.ratio)} {gains_of}, 95% interval {interval_text(ratio)}"
    asked = f", where {claim.least:g}x is asked for" if claim.least > 1 else ""
    if claim.proven is None:
        return now + asked
    return f"{now}{asked}; when it was proven {gain_text(claim.proven.ratio)}, {interval_text(claim.proven)}"
