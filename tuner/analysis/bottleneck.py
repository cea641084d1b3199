"""What holds a training loop up: its input, its computing, or what every step costs besides. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Measurement, Phase, Side, Trial
from tuner.space.resolve import ResolvedSpace

INPUT_SHARE = 0.15
OVERHEAD_SHARE = 0.5
LEAST_FROM_INPUT = 1.03
"""A perfect loader that would bring less isn't worth looking for."""
BATCH = "batch_size"


class Bound(StrEnum):
    """The part that decides the rate."""

    INPUT = "input-bound"
    COMPUTE = "compute-bound"
    OVERHEAD = "overhead-bound"


@dataclass(frozen=True)
class Bottleneck:
    """Rates in samples per second, None where one couldn't be measured; shares of the real loop's time.

    ``wait_share`` is None where the wait can't be seen. ``overhead_share`` is the part of a step that doesn't grow with
    the batch: launching, Python, the optimizer.
    """

    bound: Bound
    real: float
    compute: float | None
    loader: float | None
    unit: str
    wait_share: float | None
    overhead_share: float | None

    @property
    def most_from_input(self) -> float | None:
        """The ratio that a perfect loader would give."""
        return self.compute / self.real if self.compute is not None else None

    @property
    def saved_share(self) -> float:
        """The part of the real loop's time that one kept batch saves; 0 where that wasn't measured."""
        return max(0.0, 1 - 1 / self.most_from_input) if self.most_from_input else 0.0

    @property
    def input_share(self) -> float:
        """The part of the real loop's time that its data take: waited for, or taken from computing."""
        return max(self.wait_share or 0.0, self.saved_share)

    @property
    def hides_its_wait(self) -> bool:
        """Whether the loop waits for its loader while a device computes on, so that no loader would bring anything."""
        return self.most_from_input is not None and self.most_from_input < LEAST_FROM_INPUT


def sides(knowledge: Knowledge) -> dict[Side, Config]:
    """The sides that a script has, each with its config, in the order to run them. Half a batch needs the first."""
    if not knowledge.training_loaders:
        return {}
    found: dict[Side, Config] = {Side.COMPUTE: BASELINE, Side.LOADER: BASELINE}
    size = knowledge.as_written.get(BATCH)
    if isinstance(size, int) and size > 1 and BATCH not in knowledge.left_out:
        found[Side.HALF] = Config({BATCH: size // 2})
    return found


def find_bottleneck(real: Measurement, measured: Mapping[Side, Measurement]) -> Bottleneck:
    """From the real loop, and as many of its sides as could be measured in the same unit."""
    alike = {side: found for side, found in measured.items() if found.unit == real.unit}
    compute, loader = alike.get(Side.COMPUTE), alike.get(Side.LOADER)
    overhead = overhead_share(compute, alike.get(Side.HALF))
    found = Bottleneck(
        bound=Bound.COMPUTE,
        real=real.rate,
        compute=compute.rate if compute is not None else None,
        loader=loader.rate if loader is not None else None,
        unit=real.unit,
        wait_share=real.data_wait_share,
        overhead_share=overhead,
    )
    if found.input_share >= INPUT_SHARE:
        return replace(found, bound=Bound.INPUT)
    return replace(found, bound=Bound.OVERHEAD) if overhead is not None and overhead >= OVERHEAD_SHARE else found


def bottleneck_of(trials: Iterable[Trial]) -> Bottleneck | None:
    """What a study's probe showed beside its baseline; None where it has measured nothing."""
    real: Measurement | None = None
    measured: dict[Side, Measurement] = {}
    for trial in trials:
        found = trial.measurement
        if found is not None and trial.side is not None:
            measured[trial.side] = found
        elif trial.phase is Phase.BASELINE:
            real = found
    return find_bottleneck(real, measured) if real is not None and measured else None


def worth_turning(found: Bottleneck, space: ResolvedSpace) -> tuple[str, ...]:
    """The knobs that may widen the bottleneck."""
    return tuple(axis.knob.name for axis in space.axes if axis.knob.loader == (found.bound is Bound.INPUT))


def overhead_share(whole: Measurement | None, half: Measurement | None) -> float | None:
    """The constant of the line through the step times of a batch and of half of it, as a share of the whole one's."""
    if whole is None or half is None or not whole.steps_per_s or not half.steps_per_s:
        return None
    whole_s, half_s = 1 / whole.steps_per_s, 1 / half.steps_per_s
    return min(1.0, max(0.0, (2 * half_s - whole_s) / whole_s))
