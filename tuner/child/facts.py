"""What is seen of the script while it runs, gathered by the adapters, and sent once as the record ``Facts``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .clock import StepClock
from .counts import EpochUse, RowPlace, ScalerCounts, Schedule
from .records import Facts, LoaderUse, PlanLine, Value, plain_value
from .watch import Watch
from .words import INSTRUMENTS


@dataclass
class ScriptFacts:
    """As ``records.Knowledge``, whose names and meanings these are; an adapter sets what it knows.

    ``as_written`` and ``left_out`` are filled by whoever watches the knob in question; None as written means unknown.
    """

    as_written: dict[str, object] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    framework: str = ""
    framework_version: str = ""
    backend: str = ""
    trainer: str = ""
    loop: str = ""
    fed_by: str = ""
    unit: str = ""
    training_loaders: list[str] = field(default_factory=list)
    loaders: list[LoaderUse] = field(default_factory=list)
    dataset_len: int | None = None
    cardinality: int | None = None
    optimizers: list[str] = field(default_factory=list)
    optimizer_choices: list[str] = field(default_factory=list)
    attention_choices: list[str] = field(default_factory=list)
    compile_choices: list[str] = field(default_factory=list)
    backwards: int = 0
    optimizer_steps: int = 0
    retraces: int = 0
    loss_reduction: str = ""
    batch_norm: bool = False
    devices: int = 1
    acts_by_batch: str = ""
    counted_steps: list[int] = field(default_factory=list)
    precisions: list[str] = field(default_factory=list)
    emulated_precisions: list[str] = field(default_factory=list)
    products: dict[str, int] = field(default_factory=dict)
    gradient_scaler: ScalerCounts | None = None
    options: dict[str, str] = field(default_factory=dict)
    option_flags: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, Value] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    wait_is_unseen: bool = False
    unseen_samples: int = 0
    epoch: EpochUse | None = None
    tokens_per_sample: float = 0.0
    lengths_vary: bool = False
    written_tokens_per_sample: float = 0.0
    input_plan: tuple[PlanLine, ...] | None = None
    cache_bytes: int | None = None
    gradient_bytes: int | None = None
    batch_waits: list[float] = field(default_factory=list)
    rates: list[tuple[int, float]] = field(default_factory=list)
    group_rates: list[tuple[int, int, tuple[float, ...]]] = field(default_factory=list)
    initial_rates: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    schedules: list[Schedule] = field(default_factory=list)
    averagings: int = 0
    instruments_s: float = 0.0
    row_places: list[RowPlace] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    without: list[Watch] = field(default_factory=list)
    module_hashes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kept_as_written: set[str] = set()
        """Knobs that an option of the script's own is no better means to turn."""
        self.times_dealt = 1
        """By how many backwards a trainer deals out a batch, for each of which its loader gives as much."""

    def remark(self, text: str) -> None:
        """What the script's author should know of it; the study says it after the baseline, and in its report."""
        if text not in self.remarks:
            self.remarks.append(text)

    def keep_sizes(self, sizes: Iterable[int], counted: int | None) -> None:
        """Of several sources that feed the training none has its batches changed where they aren't as large: a number
        would be given to all of them, and steps be made of other shares of each. ``counted``: the size of those that
        rates count; None where they feed it in turn, and each step counts its own.
        """
        different = sorted({*sizes})
        if len(different) > 1:
            told = " and ".join(map(str, different))
            self.kept_as_written.add("batch_size")
            self.left_out["batch_size"] = f"loaders with batches of {told} feed the training together"
            if counted is not None:
                self.remark(f"loaders with batches of {told} feed the training: samples are those of {counted}")

    def hide_wait(self, why: str) -> None:
        """Nothing shows when this loop waits for its data: the share of it that is seen must not be reported."""
        self.wait_is_unseen = True
        self.remark(f"the wait for data can't be seen: {why}")

    def record(self, clock: StepClock, suggestions: Mapping[str, object]) -> Facts:
        """The record to send, with what the clock has counted.

        ``suggestions``: knob → the default of the script that asked for it by name.
        """
        self.instruments_s = clock.instruments.step_s
        if self.instruments_s:
            self.remark(f"{INSTRUMENTS} take {1000 * self.instruments_s:.2g} ms of each step, which are in no rate")
        written = {**self.as_written, **suggestions}
        seen = {each.name: _frozen(getattr(self, each.name)) for each in fields(self)}
        seen["as_written"] = {knob: plain_value(value) for knob, value in written.items() if value is not None}
        seen["left_out"] = {knob: reason for knob, reason in self.left_out.items() if knob not in suggestions}
        seen["set_apart"] = clock.recurring.set_apart
        return Facts(**seen, suggested=tuple(suggestions), steps=clock.total_steps, samples=clock.total_samples)


def _frozen(value: Any) -> Any:
    """The value as a record holds it: a sequence that no longer grows."""
    return tuple(value) if isinstance(value, list) else value
