"""The words of the design as frozen values. SI units: seconds, bytes, samples per second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tuner.child.records import Evidence as Evidence
from tuner.child.records import FirstGradient as FirstGradient
from tuner.child.records import KnobReport as KnobReport
from tuner.child.records import Knowledge, ProbeSide
from tuner.child.records import Value as Value
from tuner.child.records import WeightChange as WeightChange
from tuner.config import BASELINE as BASELINE
from tuner.config import Config as Config
from tuner.config import same_value as same_value


class OutcomeKind(StrEnum):
    """What a trial ended as. One is unfinished for which the study had no time: that says nothing of its config."""

    COMPLETE = "complete"
    INFEASIBLE = "infeasible"
    TIMED_OUT = "timed out"
    NO_PROGRESS = "no progress"
    CRASHED = "crashed"
    USER_ERROR = "user error"
    INFRASTRUCTURE = "infrastructure fault"
    UNFINISHED = "unfinished"


TOOK_THE_STUDY_DOWN = "took-the-study-down"
"""The reason of a trial during which the study died again and again: nobody was left to say what it came to."""


@dataclass(frozen=True)
class LeftOut:
    """Why a knob isn't searched, for people. ``unselected`` where the user himself chose others, or left it out."""

    reason: str
    unselected: bool = False


@dataclass(frozen=True)
class Block:
    """Consecutive steps of the steady window, timed together: one raw reading.

    ``wait_s`` is the part of ``seconds`` in which the script waited for its loader.
    """

    samples: float
    steps: int
    seconds: float
    wait_s: float


@dataclass(frozen=True)
class LossSeries:
    """A training loss along a run: ``points`` are the samples trained on by then, and its value.

    ``site`` is where the script calls backward on it, "" where that isn't known. ``objective`` names the first loss of
    those whose gradients go into the same optimizer steps: their sum is what is brought down.
    """

    site: str
    objective: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class CardUse:
    """What the driver said of a CUDA card during the window; None where it can't tell. ``sm_mhz`` is the median of the
    multiprocessors' clock. ``throttle_reasons`` are NVML's bits, of all readings together. ``foreign_share`` is the
    part of the multiprocessors' time in which other processes ran there.
    """

    readings: int
    sm_mhz: float | None
    lowest_sm_mhz: float | None
    hottest_celsius: float | None
    throttle_reasons: int
    foreign_bytes: int
    foreign_share: float | None


@dataclass(frozen=True)
class Energy:
    """Joules for each sample, of the host and of a device that counts its own; None where not known.

    The mean power in the window's blocks, by the rate beside them. Counters are of the whole processor or card, whoever
    used it. The host's hold ``memory_joules_per_sample`` of main memory: 0 where none counts it, None where not noted.
    """

    host_joules_per_sample: float | None = None
    device_joules_per_sample: float | None = None
    memory_joules_per_sample: float | None = None

    def times(self, factor: float) -> Energy:
        """So many times as much of each."""
        return Energy(*(joules * factor if joules is not None else None for joules in vars(self).values()))


@dataclass(frozen=True)
class Ratio:
    """A ratio of rates with its 95% interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Reference:
    """What a trial is held against: the script as written in the turns between its own. ``rate`` is in the trial's unit
    per second, ``gain`` its rate to that, by ``pairs`` of turns. ``foreign_cpus`` are the cores that others had in its
    turns, ``own_share`` is the trial's part of the seconds of both; None where an earlier version measured.
    """

    rate: float
    gain: Ratio
    pairs: int
    foreign_cpus: float | None = None
    own_share: float | None = None


@dataclass(frozen=True)
class Rotated:
    """A config's gain by ``pairs`` of turns in a rotation, which ranks it and proves nothing; None for ``fault``.
    ``without_wait``: of what the loop computes alone, since its batches were made in others' turns, too.
    """

    config: Config
    gain: Ratio | None
    pairs: int
    fault: str = ""
    without_wait: bool = False


@dataclass(frozen=True)
class Measurement:
    """A trial's figures, derived from its raw blocks and facts. ``rate`` is in ``unit`` (samples or steps) per second,
    and so are the ends of its interval, ``low`` and ``high``. In earlier versions some fields are None.

    ``peak_device_bytes`` is None where the device has no memory of its own, or nothing told of it. ``foreign_cpus`` are
    the cores that others had; ``stolen_cpus`` the part of them that a hypervisor took; ``wanted_cpus`` those that the
    trial would have used with one for each thread, None if unknown. ``data_wait_share`` is None where nothing shows it.
    ``queue_share``: the part of what the window took that lay ready before; the rate, which the loop can keep up, is
    without it. ``tokens_per_s`` is None where sequences don't vary in length, ``validation_share`` where no validation
    was seen; rates are without that. ``losses`` has the script's first one first. ``metrics`` are the last values that
    the script gave, ``first_metrics`` the first of those given again. ``scaled_steps`` are optimizer steps under a
    gradient scaler once it has found its scale, ``skipped_steps`` those that it skipped. ``compile_cache`` says what
    the compiler's cache on disk gave: nothing ("cold"), all ("warm"), a part ("mixed"); "" where nothing was compiled.
    ``cold_first_step_s``, not stored, is what an earlier, cold trial took where this one wasn't. ``turns``: so many the
    window had, 0 without; ``reference`` is None where the script as written had none between them. ``spared_s``: of the
    seconds to the first step, those that a fork server had spent before. ``warmup_extra_s``: what training between that
    step and the window took beyond the rate, which production pays once.
    """

    rate: float
    low: float
    high: float
    steps_per_s: float
    unit: str
    blocks: tuple[Block, ...]
    data_wait_share: float | None
    peak_host_bytes: int
    peak_device_bytes: int | None
    first_step_s: float
    compile_s: float
    losses: tuple[LossSeries, ...]
    steady: bool
    cpu_s_per_sample: float
    foreign_cpus: float
    knobs: tuple[KnobReport, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    stolen_cpus: float = 0.0
    card: CardUse | None = None
    scaled_steps: int = 0
    skipped_steps: int = 0
    gradient: FirstGradient | None = None
    weights: tuple[WeightChange, ...] = ()
    first_metrics: Mapping[str, float] = field(default_factory=dict)
    compile_cache: str = ""
    tokens_per_s: float | None = None
    queue_share: float = 0.0
    validation_share: float | None = None
    cold_first_step_s: float | None = None
    turns: int = 0
    reference: Reference | None = None
    warmup_extra_s: float | None = None
    spared_s: float | None = None
    energy: Energy = Energy()
    wanted_cpus: float | None = None

    @property
    def skip_share(self) -> float:
        """The share of its steps that a gradient scaler skipped."""
        return self.skipped_steps / self.scaled_steps if self.scaled_steps else 0.0

    @property
    def start_s(self) -> float:
        """Seconds to the first step as production pays them once: with nothing compiled yet, where that is known."""
        return self.first_step_s if self.cold_first_step_s is None else self.cold_first_step_s

    @property
    def paid_once_s(self) -> float:
        """Seconds that a training pays once, beside what its samples take at the rate."""
        return self.start_s + (self.warmup_extra_s or 0.0)


@dataclass(frozen=True)
class Outcome:
    """What a trial ended as, why (``reason`` is a slug, ``detail`` a line for people), and what it showed.

    ``knowledge`` is what the child saw of the script in this trial. ``seconds`` is from the launch to the end.
    ``traceback_text`` is as plain Python prints it; ``with_ours`` has autotune's own frames, "" without any.
    ``rotation``: the configs that took turns in the trial's process, () but in that phase. ``again_after``: the reason
    of an earlier run of it that something killed from outside, "" without. ``rank``: which of several failed first,
    else None. ``over_limit``: the bytes of the limit of its memory that alone ended it, or forbids it, else None.
    """

    kind: OutcomeKind
    reason: str = ""
    detail: str = ""
    traceback_text: str = ""
    measurement: Measurement | None = None
    knowledge: Knowledge = field(default_factory=Knowledge)
    seconds: float = 0.0
    with_ours: str = ""
    rotation: tuple[Rotated, ...] = ()
    again_after: str = ""
    rank: int | None = None
    over_limit: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the trial gave a measurement that a config may be judged by."""
        return self.kind is OutcomeKind.COMPLETE and self.measurement is not None


class Phase(StrEnum):
    """Which part of a study a trial belongs to. An anchor is the baseline again, to see whether the machine drifts.

    A probe runs one side of the loop by itself: it says what holds the script up, and nothing of a config. In a
    rotation several configs take turns in one process: it says which ones are worth a trial.
    """

    BASELINE = "baseline"
    PROBE = "probe"
    ROTATION = "rotation"
    SEARCH = "search"
    ANCHOR = "anchor"
    SCREEN = "screen"
    FINALS = "finals"


SIDELINES = frozenset({Phase.PROBE, Phase.ROTATION})
"""Phases whose trials are no runs of one config: they say nothing of the one that they began with."""


class Side(StrEnum):
    """A part of the training loop that a probe runs by itself: computing on a kept batch, the loader, half a batch."""

    COMPUTE = "compute"
    LOADER = "loader"
    HALF = "half"

    @property
    def in_child(self) -> ProbeSide:
        """What the child is asked to run: half a batch is computed like a whole one, under another config."""
        return ProbeSide.LOADER if self is Side.LOADER else ProbeSide.COMPUTE


@dataclass(frozen=True)
class Trial:
    """One config evaluated once. ``why`` says for people in a few words what it is for; nothing depends on it.

    ``group`` holds the numbers of the trials whose configs this run compares: the finalists in the finals, the
    candidate in a screen; in an anchor that of the disturbed run of the baseline in whose place it is. Elsewhere, and
    in the baseline's runs of a screen, which all candidates share, it is empty. A run of the finals has its ``round``,
    from 1; one of a screen its ``seed`` and the number of ``samples``; a probe's run the ``side`` of the loop.
    """

    number: int
    phase: Phase
    config: Config
    why: str = ""
    outcome: Outcome | None = None
    round: int | None = None
    seed: int | None = None
    group: tuple[int, ...] = ()
    samples: int | None = None
    side: Side | None = None

    @property
    def measurement(self) -> Measurement | None:
        """The measurement that its config may be judged by: a complete outcome's, else None."""
        return self.outcome.measurement if self.outcome is not None and self.outcome.complete else None


def baseline_of(trials: Iterable[Trial]) -> Trial | None:
    """The script as written, once it is among the trials."""
    return next((trial for trial in trials if trial.phase is Phase.BASELINE), None)


@dataclass(frozen=True)
class Shift:
    """Two runs of the baseline, one after the other by trial number, that differ by ``ratio`` (at least 1): the machine
    changed in between, and nobody knows when, so that gains of the trials between them are rough.
    """

    before: int
    after: int
    ratio: float


@dataclass(frozen=True)
class Device:
    """The device a study runs on. ``uuid`` identifies the physical card; for a CPU it is the model's name.

    ``label`` is how it is written on the command line: ``cpu``, ``cuda:0``; its kind for the only one of its kind.
    """

    kind: str
    index: int
    name: str
    uuid: str
    memory_bytes: int
    label: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.kind)


@dataclass(frozen=True)
class Script:
    """What is tuned: a file, or a module as ``python -m`` runs it, with its arguments."""

    path: str
    argv: tuple[str, ...]
    module: str = ""
    sha256: str = ""


class Verdict(StrEnum):
    """What finals proved."""

    IMPROVED = "improved"
    KEEP_BASELINE = "keep-baseline"


@dataclass(frozen=True)
class Winner:
    """What finals proved: the config, its ratio to the baseline, and both measurements."""

    verdict: Verdict
    config: Config
    speedup: Ratio
    baseline: Measurement
    winner: Measurement
    runs: int
    label: str = ""


@dataclass(frozen=True)
class TierBest:
    """The best config whose knobs change no more than ``tier`` says: 1 speed, 2 the numerics, 3 the optimisation.

    ``gain`` is of its single trial; ``speedup`` is what the finals say, None where it wasn't judged there. ``learned``
    is its screen's verdict (``pass-by-time``: a larger batch, held to its speed), ``not-needed`` or ``not-screened``.
    """

    tier: int
    config: Config
    gain: float
    speedup: Ratio | None
    proven: bool
    learned: str


@dataclass(frozen=True)
class WaterfallEntry:
    """One entry of the waterfall: a change on the way from the script as written to the fastest single trial.

    ``added`` are the knobs beyond those of the change before, empty for the script as written; ``knobs`` what was
    observed of them. ``score`` is the objective's figure; ``gain`` its ratio to the change before, ``total`` to the
    script as written, both above 1 for better; ``rough`` where the baseline drifted, or its window leaves that open.
    """

    trial: int
    added: Config
    measurement: Measurement
    score: float
    gain: float
    total: float
    rough: bool
    knobs: tuple[KnobReport, ...]
