"""Whether a study of nothing but a profile's config still shows what the profile says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tuner.analysis.learning import LATER
from tuner.analysis.stats import Noninferiority
from tuner.formatting import gain_text, interval_text, screened_text
from tuner.model import Config, Evidence, Outcome, OutcomeKind, Phase, Ratio, Winner
from tuner.result import StudyResult


class Answer(StrEnum):
    """What a verification says of the profile."""

    HOLDS = "verified"
    FAILS = "not true any more"
    OPEN = "can't tell"


@dataclass(frozen=True)
class Claim:
    """What is held to be true: that ``config`` is so many times as fast (``least``) at least, by its whole interval.

    ``proven`` is the ratio that the profile has, None in one of an earlier version.
    """

    config: Config
    least: float
    proven: Ratio | None

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
    failed = next(_failures(result, claim.config), "")
    if failed:
        return Verification(Answer.FAILS, failed)
    winner = result.winner
    if winner is not None and winner.config == claim.config:
        return _by_finals(winner, claim)
    open_screen = next((s for s in result.screened if s.config == claim.config), None)
    if open_screen is not None and open_screen.verdict is not Noninferiority.PASS:
        return Verification(Answer.OPEN, screened_text(open_screen))
    return _by_trial(result, claim)


def _failures(result: StudyResult, config: Config) -> Iterator[str]:
    """What doesn't work of the config, or isn't as good, whatever its speed."""
    for trial in result.trials:
        if trial.config != config or trial.phase not in (Phase.SEARCH, Phase.FINALS) or trial.outcome is None:
            continue
        if _has_failed(trial.outcome):
            yield f"trial {trial.number} ended as {trial.outcome.kind}: {trial.outcome.detail}"
        for report in trial.measurement.knobs if trial.measurement is not None else ():
            if report.evidence in (Evidence.NOT_APPLICABLE, Evidence.CONTRADICTED):
                yield f"{report.knob} isn't in effect: {report.reason or report.evidence}"
    for screened in result.screened:
        if screened.config == config and screened.verdict is Noninferiority.FAIL:
            yield screened_text(screened)


def _has_failed(outcome: Outcome) -> bool:
    """Whether that says something of the config: no time for a trial, and faults of the machine, don't."""
    return not outcome.complete and outcome.kind not in (OutcomeKind.UNFINISHED, OutcomeKind.INFRASTRUCTURE)


def _by_finals(winner: Winner, claim: Claim) -> Verification:
    ratio = winner.speedup
    if winner.label == LATER:
        return Verification(Answer.FAILS, f"{_speed(ratio, claim)}: {winner.label}")
    if winner.label:
        return Verification(Answer.OPEN, f"{_speed(ratio, claim)}: {winner.label}")
    if ratio.low > 1 and ratio.low >= claim.least:
        return Verification(Answer.HOLDS, _speed(ratio, claim))
    return Verification(Answer.FAILS if claim.is_missed_by(ratio) else Answer.OPEN, _speed(ratio, claim))


def _by_trial(result: StudyResult, claim: Claim) -> Verification:
    """Without finals: the config seemed no faster in its trial, or there was no time for more."""
    searched = [t for t in result.trials if t.config == claim.config and t.phase is Phase.SEARCH and t.measurement]
    measured = searched[-1].measurement if searched else None
    reference = measured.reference if measured is not None else None
    if reference is None:
        return Verification(Answer.OPEN, result.cannot_tell or result.why)
    told = f"in a single trial {_speed(reference.gain, claim)}"
    if result.cannot_tell:
        return Verification(Answer.OPEN, f"{told}; {result.cannot_tell}")
    if claim.is_missed_by(reference.gain):
        return Verification(Answer.FAILS, told)
    return Verification(Answer.OPEN, f"{told}; {result.why}" if result.why else told)


def _speed(ratio: Ratio, claim: Claim) -> str:
    now = f"{gain_text(ratio.ratio)} the speed, 95% interval {interval_text(ratio)}"
    asked = f", where {claim.least:g}x is asked for" if claim.least > 1 else ""
    if claim.proven is None:
        return now + asked
    return f"{now}{asked}; when it was proven {gain_text(claim.proven.ratio)}, {interval_text(claim.proven)}"
