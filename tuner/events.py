"""What a study reports while it runs: frozen records, delivered in order to one listener."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tuner.analysis.accuracy import Screened
from tuner.analysis.bottleneck import Bottleneck
from tuner.model import Config, Device, LeftOut, Ratio, Script, Trial, Winner


@dataclass(frozen=True)
class TrialFinished:
    """``gain`` is the trial's ratio to the baseline (above 1 is better), None where it has no measurement.

    ``best`` is the best trial so far, not proven by anything yet, and ``best_gain`` its ratio.
    """

    trial: Trial
    gain: float | None
    best: Trial | None
    best_gain: float | None


@dataclass(frozen=True)
class StudyStarted:
    """``trials`` and ``budget_s`` bound the search (None: unbounded); ``finals_share`` of the time is for the finals.

    ``earlier`` are the trials of a resumed study, as they were reported when they finished.
    """

    name: str
    folder: str
    script: Script
    device: Device
    trials: int | None
    budget_s: float | None
    finals_share: float
    resumed: bool
    earlier: tuple[TrialFinished, ...] = ()


@dataclass(frozen=True)
class SpaceResolved:
    """What is searched now that the baseline is known: knob → values, the script's own value, what is left out.

    ``larger``: the knobs that are turned for larger effective batches alone, which aren't among the ``size`` configs.
    """

    values: dict[str, tuple[object, ...]]
    as_written: dict[str, object]
    left_out: dict[str, LeftOut]
    pinned: Config
    size: int
    larger: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Probed:
    """What holds the script up."""

    bottleneck: Bottleneck


@dataclass(frozen=True)
class TrialStarted:
    """A trial's process is about to start; it has no outcome yet."""

    trial: Trial
    done: int
    seconds_left: float | None


@dataclass(frozen=True)
class Screening:
    """A candidate has learned beside the baseline; what came of it."""

    trial: Trial
    result: Screened


@dataclass(frozen=True)
class FinalsStarted:
    """The candidates meet the baseline in ``rounds`` rounds of fresh processes."""

    candidates: tuple[Trial, ...]
    rounds: int


@dataclass(frozen=True)
class PairFinished:
    """A candidate and the baseline have both been measured in one round."""

    round: int
    rounds: int
    config: Config
    gain: float
    so_far: Ratio | None


@dataclass(frozen=True)
class StudyFinished:
    """The end of a study; ``why`` says in a few words what ended the search."""

    winner: Winner | None
    best: Trial | None
    trials: int
    seconds: float
    why: str
    interrupted: bool = False


@dataclass(frozen=True)
class Noted:
    """A line for people."""

    text: str


Event = (
    StudyStarted
    | SpaceResolved
    | Probed
    | TrialStarted
    | TrialFinished
    | Screening
    | FinalsStarted
    | PairFinished
    | StudyFinished
    | Noted
)
Listener = Callable[[Event], None]
