"""What crosses between parent and child, declared once as types: the request in, the records out.

Each type is a frozen dataclass of JSON's own kinds; ``shape.read`` validates what comes from the other side.
Seconds, bytes, samples. ``Knowledge`` travels both ways: the child's last record is what it saw of the script, and
later requests give it back with what the study adds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import ClassVar, get_args

from .counts import EpochUse, RowPlace, ScalerCounts, Schedule
from .learned import FirstGradient as FirstGradient
from .learned import Loss as Loss
from .learned import Metric as Metric
from .learned import WeightChange as WeightChange
from .step_records import Block as Block
from .step_records import FirstStep as FirstStep
from .step_records import RankEnded as RankEnded
from .step_records import Window as Window
from .turn_records import ConfigCompiled as ConfigCompiled
from .turn_records import DisturbedTurn as DisturbedTurn
from .turn_records import LeftRotation as LeftRotation
from .turn_records import LoaderStarted as LoaderStarted
from .turn_records import SwitchedTo as SwitchedTo
from .turn_records import TurnEnd as TurnEnd
from .watch import Pause, Silences, Watch
from .words import Evidence as Evidence
from .words import Mode as Mode
from .words import Phase as Phase
from .words import ProbeSide as ProbeSide
from .words import Value as Value


def plain_value(value: object) -> Value:
    """The value as one that can be sent: numbers of any library as Python's own, all else as text."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    return bool(value) if type(value).__name__ in ("bool", "bool_") else str(value)  # NumPy's own is no number


PlanLine = tuple[int, str, int | str | None, int | None]
"""A node of the plan that tf.data executes: depth, name, what it is turned to, the limit of its threads."""


@dataclass(frozen=True)
class LoaderUse:
    """A place where loaders (or datasets) are iterated. ``made``: None where that isn't counted. ``first``: of one of
    several ranks, a digest of its first batch."""

    key: str
    fetches: int
    made: int | None = None
    first: str = ""


def hold_lines(keys: Collection[str]) -> bool:
    """Whether some of these keys of sources name lines, as earlier versions wrote them; see ``call_sites``."""
    return any(re.match(r"[^<~]+:\d+(?:<|#|$)", key) for key in keys)


@dataclass(frozen=True)
class Knowledge:
    """What is known of a script. Empty and None mean unknown; every field may be absent in JSON.

    ``as_written``: knob → the script's own value. ``left_out``: knob → why it can't be turned here.
    ``framework``: the one that trains. ``unit``: what rates count, "samples" or "steps".
    ``training_loaders``: keys of the loaders that feed the training. ``loss_reduction``: "mean", "sum", "count",
    "ratio" or "unknown". ``acts_by_batch``: what of the script's own acts with every batch of a trainer.
    ``counted_steps``: the batches of an epoch and of a validation, where the script gives its trainer a number of them.
    ``devices``: on so many the framework computes a step, one of the study's being all of them.
    ``precisions``, ``optimizer_choices``, ``attention_choices``: values that the device, the optimizers and PyTorch's
    attention offer. ``emulated_precisions``: those that the device has no instructions for.
    ``compile_choices``: what may be compiled besides all of a model, by its blocks and its shapes.
    ``options``: knob → destination of the script's own option, ``option_flags`` its flag; ``arguments``: knob
    bound to an argument → what its parser holds. ``remarks``: what the script's author should know.
    ``set_apart``: of what came between steps, such as a validation, "all", "some" or "nothing" was set apart.
    ``wait_is_unseen``: nothing shows when the loop waits for its data. ``unseen_samples``: those, in the ``unit``, that
    may have lain ready before the window, where nothing shows how many did. ``epoch``: what an epoch begins with.
    ``tokens_per_sample``: of what trained, padding left out; 0 where none are counted. ``lengths_vary``: not every
    batch has as many a sample. ``written_tokens_per_sample``: those of the script as written, where they are known.
    ``input_plan``: what tf.data executes; ``cache_bytes``: what keeping its elements would take.
    ``gradient_bytes``: what several ranks exchange in a step, of the largest of their models.
    ``batch_waits``: seconds that the script as written waited for its newest batches, but an iteration's first one.
    ``rates``: optimizer steps, ever sparser ones, with the learning rate that each was taken with, by the first group
    of the optimizer that stepped first. ``group_rates``: optimizer, in the order of first steps, its step, and the
    rates of all its groups then, where there are several of either. ``initial_rates``: optimizer, and the rates that
    its schedules start from. ``schedules``: what moves such rates.
    ``averagings``: updates of averaged models (EMA, SWA). ``instruments_s``: what autotune's own instruments take of
    each step, which is in no rate; 0 where that isn't told.
    ``module_hashes``: path of an imported module of the user's, from the script's folder → SHA-256 of its source, ""
    where that was edited meanwhile.
    ``row_places``: where the samples of batches lie that the loop makes by itself, the likeliest place first.
    ``watches``: those that were in place, in this order; ``without``: those that were switched off.

    The study adds: ``placeholders`` (knobs bound to arguments), ``effective_batch`` (keep, free, both),
    ``free_host_bytes`` (what the memory limit leaves), ``allocators`` (those installed), ``loop_s`` (what a batch takes
    the loop beside its wait), ``beside`` (knob → the arguments without which it means nothing), ``device_clean``
    (whether the device was free of the trial's memory afterwards), ``silences``.
    """

    as_written: Mapping[str, Value] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    suggested: tuple[str, ...] = ()
    steps: int = 0
    samples: float = 0.0
    framework: str = ""
    framework_version: str = ""
    backend: str = ""
    trainer: str = ""
    loop: str = ""
    fed_by: str = ""
    unit: str = ""
    training_loaders: tuple[str, ...] = ()
    loaders: tuple[LoaderUse, ...] = ()
    dataset_len: int | None = None
    cardinality: int | None = None
    optimizers: tuple[str, ...] = ()
    optimizer_choices: tuple[str, ...] = ()
    attention_choices: tuple[str, ...] = ()
    compile_choices: tuple[str, ...] = ()
    backwards: int = 0
    optimizer_steps: int = 0
    retraces: int = 0
    loss_reduction: str = ""
    batch_norm: bool = False
    devices: int = 1
    acts_by_batch: str = ""
    counted_steps: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ()
    emulated_precisions: tuple[str, ...] = ()
    products: Mapping[str, int] = field(default_factory=dict)
    gradient_scaler: ScalerCounts | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    option_flags: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Value] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    set_apart: str = ""
    wait_is_unseen: bool = False
    unseen_samples: int = 0
    epoch: EpochUse | None = None
    tokens_per_sample: float = 0.0
    lengths_vary: bool = False
    written_tokens_per_sample: float = 0.0
    input_plan: tuple[PlanLine, ...] | None = None
    cache_bytes: int | None = None
    gradient_bytes: int | None = None
    batch_waits: tuple[float, ...] = ()
    rates: tuple[tuple[int, float], ...] = ()
    group_rates: tuple[tuple[int, int, tuple[float, ...]], ...] = ()
    initial_rates: tuple[tuple[int, tuple[float, ...]], ...] = ()
    schedules: tuple[Schedule, ...] = ()
    averagings: int = 0
    instruments_s: float = 0.0
    module_hashes: Mapping[str, str] = field(default_factory=dict)
    row_places: tuple[RowPlace, ...] = ()
    placeholders: tuple[str, ...] = ()
    effective_batch: str = "keep"
    free_host_bytes: int | None = None
    allocators: tuple[str, ...] = ()
    loop_s: float = 0.0
    beside: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    device_clean: bool = True
    watches: tuple[Watch, ...] = ()
    without: tuple[Watch, ...] = ()
    silences: Silences = field(default_factory=Silences)

    def given(self, config: Mapping[str, Value]) -> Mapping[str, Value]:
        """The config as the script's own options and arguments take it: what a patch splits is whole to them.

        So whatever the script derives from the size (rates, schedules, steps of an epoch) stays as it is written.
        """
        parts, size = config.get("grad_accumulation"), config.get("batch_size", self.as_written.get("batch_size"))
        by_options = "grad_accumulation" in {*self.placeholders, *self.options, *self.suggested}
        patched = self.trainer != "transformers" and not by_options
        if patched and type(parts) is int and type(size) is int:
            return {**config, "batch_size": size * parts}
        return config


@dataclass(frozen=True)
class ChildRequest:
    """One run of the user's script, as the child reads it.

    ``script`` is absolute, ``script_as_given`` what stood on the command line; with ``module`` both are empty.
    ``device`` is a label such as ``cuda:0``. ``spawned_monotonic`` is the parent's clock at the launch, which the
    child shares. ``used_device_bytes`` is what others hold of the device. ``strict``: in mode "apply", a knob that
    doesn't take effect ends the script. ``any_devices``: in that mode, a profile for several devices is applied to any
    number of them. ``without`` are the watches to leave out. ``hidden``: paths of trials that are
    alive beside this one, which aren't there for it. ``rotation``: configs that take turns in its window. ``spared_s``:
    seconds that a fork server had spent for it before.
    """

    mode: Mode = Mode.TRIAL
    script: str = ""
    script_as_given: str = ""
    module: str = ""
    argv: tuple[str, ...] = ()
    device: str = "cpu"
    config: Mapping[str, Value] = field(default_factory=dict)
    knowledge: Knowledge = Knowledge()
    folder: str = ""
    window: Window = field(default_factory=Window)
    deadline_s: float | None = None
    seed: int | None = None
    probe: ProbeSide | None = None
    max_device_bytes: int | None = None
    used_device_bytes: int = 0
    parent_pid: int | None = None
    spawned_monotonic: float | None = None
    strict: bool = False
    any_devices: bool = False
    without: tuple[Watch, ...] = ()
    hidden: tuple[str, ...] = ()
    spared_s: float = 0.0
    rotation: tuple[Mapping[str, Value], ...] = ()


# Records, in the order in which a trial sends them. ``kind`` is the record's name on the wire.


@dataclass(frozen=True)
class Hello:
    """The child is up, and its hooks are in place."""

    kind: ClassVar[str] = "hello"
    pid: int
    python: str
    executable: str


@dataclass(frozen=True)
class FrameworkSeen:
    """A framework was imported; which one trains is among the facts."""

    kind: ClassVar[str] = "framework"
    name: str
    version: str
    device: str


@dataclass(frozen=True)
class TrainingPause:
    """Training pauses for what may take long without a step: that ``begins``, or else has ended."""

    kind: ClassVar[str] = "pause"
    pause: Pause
    begins: bool


@dataclass(frozen=True)
class Memory:
    """Bytes of the device: the framework's peaks, and what the driver and its libraries hold beside them.

    ``pool``: where the framework can't tell what is held beside it, what it had taken of the device by then, whether or
    not it was in use; 0 where it takes as it needs and doesn't tell. All but that, of what the process holds, is beside
    it. None where ``overhead`` says it, or nothing can.
    """

    kind: ClassVar[str] = "memory"
    reserved: int
    allocated: int
    overhead: int = 0
    total: int = 0
    retries: int = 0
    ooms: int = 0
    pool: int | None = None


@dataclass(frozen=True)
class Compile:
    """What was compiled: graphs, seconds, graph breaks, and what the compiler's cache on disk gave."""

    kind: ClassVar[str] = "compile"
    graphs: int
    seconds: float
    breaks: int = 0
    cache_hits: int = 0
    cache_misses: int = 0


@dataclass(frozen=True)
class KnobReport:
    """Requested → sites seen → changed → evidence, for one knob. ``of_value``: where it isn't applicable, whether that
    is so of the requested value alone, which is at work anyway, or of any; None where nobody can tell."""

    kind: ClassVar[str] = "knob"
    knob: str
    requested: Value
    sites_seen: int
    sites_changed: int
    evidence: Evidence
    reason: str = ""
    observed: Value | None = None
    of_value: bool | None = None


@dataclass(frozen=True)
class Unstepped:
    """So many batches were given to the script, or gradients taken by it where it makes no optimizer, and no step was
    seen: told again whenever they are twice as many.
    """

    kind: ClassVar[str] = "unstepped"
    batches: int
    gradients: int = 0


@dataclass(frozen=True)
class LongCall:
    """All is compiled for a call that takes so many steps at once; its end is the first thing that can be measured."""

    kind: ClassVar[str] = "long-call"
    function: str
    steps: int


@dataclass(frozen=True)
class ProcessesAwaited:
    """Before its first step the script waits for the end of a process that it started, which runs ``function``; "" once
    that has ended.
    """

    kind: ClassVar[str] = "processes-awaited"
    function: str


@dataclass(frozen=True)
class Note:
    """A line for people: what was diverted, what could not be done."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True)
class Failure:
    """A config that can't work, recognised in the child. ``reason`` is a slug, ``detail`` a line for people."""

    kind: ClassVar[str] = "failure"
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Facts(Knowledge):
    """What the child saw of the script."""

    kind: ClassVar[str] = "facts"


@dataclass(frozen=True)
class WindowEnd:
    """The window ended: ``complete``, or else ``why`` it did before."""

    kind: ClassVar[str] = "window"
    complete: bool
    why: str = ""


@dataclass(frozen=True)
class ScriptException:
    """An exception left the user's script. ``traceback`` is as plain Python prints it; ``with_ours`` has our own frames
    as well, "" where none are in it."""

    kind: ClassVar[str] = "exception"
    type: str
    text: str = ""
    traceback: str = ""
    origin: str = "script"
    with_ours: str = ""


@dataclass(frozen=True)
class Exit:
    """How the script ended: the code that plain Python would have given."""

    kind: ClassVar[str] = "exit"
    code: int


Record = (
    Hello | FrameworkSeen | FirstStep | Block | TurnEnd | TrainingPause | Loss | Metric | FirstGradient | WeightChange
    | Memory | Compile | KnobReport | Note | Failure | Facts | WindowEnd | ScriptException | Exit | SwitchedTo
    | LeftRotation | LoaderStarted | ConfigCompiled | DisturbedTurn | RankEnded | Unstepped | LongCall
    | ProcessesAwaited
)  # fmt: skip
RECORDS: Mapping[str, type[Record]] = {record.kind: record for record in get_args(Record)}
"""By their names on the wire."""
