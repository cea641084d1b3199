"""What a study's events add up to, for any view of it. Pure: time is passed in."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.analysis.gain import is_left_open
from tuner.events import (
    Event,
    FinalsStarted,
    Noted,
    PairFinished,
    Probed,
    Screening,
    SpaceResolved,
    StudyFinished,
    StudyStarted,
    TrialFinished,
    TrialStarted,
)
from tuner.formatting import (
    AS_WRITTEN,
    config_text,
    gain_text,
    ratio_text,
    result_text,
    run_text,
    screened_text,
    seconds_text,
)
from tuner.model import Config, Phase, Trial

BEHIND = (Phase.SCREEN, Phase.FINALS)
"""Phases of which one line is shown for several runs."""


@dataclass(frozen=True)
class Row:
    """A finished trial as a line of text. ``good``: whether it gave a measurement; ``best``: the best so far."""

    number: int
    config: str
    result: str
    gain: str
    good: bool
    best: bool


@dataclass
class State:
    """What the events of a study so far add up to. ``see`` takes them in order.

    ``rows`` are the finished trials in order, without the runs of ``BEHIND``; ``search_done`` counts those of baseline
    and search. ``in_finals`` are the configs that finals have run, and ``pairs`` holds the latest round of each
    finalist. ``deadline`` and ``running_since`` are on the clock of ``now``: monotonic, in seconds; a deadline of None
    means no budget. ``best_gain`` is a ratio to the baseline.
    """

    started: StudyStarted | None = None
    space: SpaceResolved | None = None
    probed: Probed | None = None
    rows: list[Row] = field(default_factory=list)
    running: TrialStarted | None = None
    best: Trial | None = None
    best_gain: float | None = None
    in_finals: set[Config] = field(default_factory=set)
    screens: list[Screening] = field(default_factory=list)
    finals: FinalsStarted | None = None
    pairs: dict[Config, PairFinished] = field(default_factory=dict)
    finished: StudyFinished | None = None
    notes: list[str] = field(default_factory=list)
    stopping: bool = False
    search_done: int = 0
    deadline: float | None = None
    running_since: float = 0.0

    def see(self, event: Event, now: float) -> None:
        """Takes one event."""
        match event:
            case StudyStarted():
                self.started = event
                for earlier in event.earlier:
                    self._finish(earlier)
                self.deadline = None if event.budget_s is None else now + event.budget_s
            case SpaceResolved():
                self.space = event
            case Probed():
                self.probed = event
            case TrialStarted():
                self.running = event
                self.running_since = now
                self.deadline = None if event.seconds_left is None else now + event.seconds_left
            case TrialFinished():
                self._finish(event)
            case Screening():
                self.screens.append(event)
            case FinalsStarted():
                self.finals, self.pairs = event, {}
            case PairFinished():
                self.pairs[event.config] = event
            case StudyFinished():
                self.finished = event
                self.running = None
            case Noted():
                self.notes.append(event.text)

    @property
    def best_text(self) -> str:
        """The best trial so far, "not proven yet" where no finals have run its config; "" where that is as written."""
        if self.best is None or self.best_gain is None or not self.best.config:
            return ""
        proof = "by its single trial" if self.best.config in self.in_finals else "not proven yet"
        gain = gain_text(self.best_gain, rough=is_left_open(self.best))
        return f"best so far, {proof}: {trial_name(self.best.config)}, {gain}"

    def share_done(self, now: float) -> float:
        """How much of the study is done, between 0 and 1: by trials or by time, whichever is further."""
        if self.finished is not None:
            return 1.0
        if self.started is None:
            return 0.0
        shares = [0.0]
        search = 1.0 - (self.started.finals_share if self.started.budget_s else 0.0)
        if self.finals is None and self.started.trials:
            shares.append(search * min(1.0, self.search_done / self.started.trials))
        if self.finals is not None:
            pairs = sum(pair.round for pair in self.pairs.values())
            shares.append(search + (1 - search) * pairs / max(1, self.finals.rounds * len(self.finals.candidates)))
        if self.started.budget_s and self.deadline is not None:
            shares.append(1.0 - max(0.0, self.deadline - now) / self.started.budget_s)
        return min(1.0, max(shares))

    def time_left(self, now: float) -> str:
        """The time that is left at most."""
        return "" if self.deadline is None else f"at most {seconds_text(max(0.0, self.deadline - now))} left"

    def _finish(self, event: TrialFinished) -> None:
        trial = event.trial
        self.running = None
        if trial.phase is Phase.FINALS:
            self.in_finals.add(trial.config)
        if trial.phase in BEHIND:
            return
        self.search_done += trial.phase in (Phase.BASELINE, Phase.SEARCH)
        improved = event.best is not None and event.best.number == trial.number and trial.phase is Phase.SEARCH
        self.best, self.best_gain = event.best, event.best_gain
        self.rows.append(row_of(trial, event.gain, best=improved))


def row_of(trial: Trial, gain: float | None, *, best: bool) -> Row:
    """A trial as a line of text."""
    outcome = trial.outcome
    measured = outcome is not None and outcome.complete
    config = str(trial.phase) if trial.phase in (Phase.BASELINE, Phase.ANCHOR) else run_text(trial)
    shown = gain_text(gain, rough=is_left_open(trial)) if gain is not None else ""
    return Row(trial.number, config, result_text(trial), shown, bool(measured), best)


def started_text(trial: Trial) -> str:
    """What is run, and what for."""
    if trial.side is not None or trial.phase is Phase.ROTATION:
        return f"trial {trial.number}: {run_text(trial)}"
    return f"trial {trial.number}: {trial_name(trial.config)}" + (f" ({trial.why})" if trial.why else "")


def trial_name(config: Config) -> str:
    """The config in a sentence."""
    text = config_text(config)
    return "the script as written" if text == AS_WRITTEN else text


def pair_text(pair: PairFinished) -> str:
    """A finalist's ratio so far."""
    so_far = ratio_text(pair.so_far) if pair.so_far is not None else gain_text(pair.gain)
    return f"{trial_name(pair.config)}: {so_far} after round {pair.round} of {pair.rounds}"


def screening_text(event: Screening) -> str:
    """What a screen showed of a candidate."""
    return f"{trial_name(event.trial.config)}: {screened_text(event.result)}"
