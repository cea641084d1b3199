"""What limits a training loop: its input, its computing, or what each step costs besides its samples. Pure.

From the real loop's measurement and those of its sides, which a probe runs alone: computing on one kept batch, on half
a batch, and fetching without training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Measurement, Phase, Side, Trial
from tuner.space.resolve import ResolvedSpace

INPUT_SHARE = 0.15
"""A loop whose data take so large a share of its time is input-bound."""
OVERHEAD_SHARE = 0.5
"""A loop of whose steps so large a share doesn't grow with the batch is overhead-bound."""
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
    """Rates of the real loop and of its sides, and shares of the real loop's time.

    ``real``, ``compute`` and ``loader`` are in ``unit`` (samples or steps) per second, None where one wasn't measured.
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
    """Side → the config to run it with, in the order to run them; {} where no loader is known to feed the training.

    ``HALF`` is there where the batch size can be halved, and says something beside ``COMPUTE`` only.
    """
    if not knowledge.training_loaders:
        return {}
    configs: dict[Side, Config] = {Side.COMPUTE: BASELINE, Side.LOADER: BASELINE}
    size = knowledge.as_written.get(BATCH)
    if isinstance(size, int) and size > 1 and BATCH not in knowledge.left_out:
        configs[Side.HALF] = Config({BATCH: size // 2})
    return configs


def find_bottleneck(real: Measurement, measured: Mapping[Side, Measurement]) -> Bottleneck:
    """From the real loop and the sides that were measured; those in another unit than the real loop don't count."""
    alike = {side: measurement for side, measurement in measured.items() if measurement.unit == real.unit}
    compute, loader = alike.get(Side.COMPUTE), alike.get(Side.LOADER)
    overhead = overhead_share(compute, alike.get(Side.HALF))
    bottleneck = Bottleneck(
        bound=Bound.COMPUTE,
        real=real.rate,
        compute=compute.rate if compute is not None else None,
        loader=loader.rate if loader is not None else None,
        unit=real.unit,
        wait_share=real.data_wait_share,
        overhead_share=overhead,
    )
    if bottleneck.input_share >= INPUT_SHARE:
        return replace(bottleneck, bound=Bound.INPUT)
    if overhead is not None and overhead >= OVERHEAD_SHARE:
        return replace(bottleneck, bound=Bound.OVERHEAD)
    return bottleneck


def bottleneck_of(trials: Iterable[Trial]) -> Bottleneck | None:
    """From a study's trials: its baseline, and the sides that its probe measured. None where either is lacking."""
    real: Measurement | None = None
    measured: dict[Side, Measurement] = {}
    for trial in trials:
        measurement = trial.measurement
        if measurement is not None and trial.side is not None:
            measured[trial.side] = measurement
        elif trial.phase is Phase.BASELINE:
            real = measurement
    return find_bottleneck(real, measured) if real is not None and measured else None


def worth_turning(bottleneck: Bottleneck, space: ResolvedSpace) -> tuple[str, ...]:
    """The knobs that may relieve the bottleneck: the loader's where the loop is input-bound, else the others."""
    return tuple(axis.knob.name for axis in space.axes if axis.knob.loader == (bottleneck.bound is Bound.INPUT))


def overhead_share(whole: Measurement | None, half: Measurement | None) -> float | None:
    """The share of a step's time that doesn't grow with the batch, in [0, 1]; None where either can't be told.

    The constant of the line through the step times of a whole batch and of half of one.
    """
    if whole is None or half is None or not whole.steps_per_s or not half.steps_per_s:
        return None
    whole_s, half_s = 1 / whole.steps_per_s, 1 / half.steps_per_s
    return min(1.0, max(0.0, (2 * half_s - whole_s) / whole_s))
