"""What holds a training loop up: its input, its computing, or what every step costs besides. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuner.model import Measurement
from tuner.space import ResolvedSpace

INPUT_SHARE = 0.15
OVERHEAD_SHARE = 0.5


class Bound(StrEnum):
    """The part that decides the rate."""

    INPUT = "input-bound"
    COMPUTE = "compute-bound"
    OVERHEAD = "overhead-bound"


@dataclass(frozen=True)
class Bottleneck:
    """Rates in samples per second, None where one couldn't be measured; shares of the real loop's time.

    ``overhead_share`` is the part of a step that doesn't grow with the batch: launching, Python, the optimizer.
    """

    bound: Bound
    real: float
    compute: float | None
    loader: float | None
    unit: str
    wait_share: float
    overhead_share: float | None
    headroom_bytes: int | None
    knobs: tuple[str, ...]

    @property
    def most_from_input(self) -> float | None:
        """The ratio that a perfect loader would bring."""
        return self.compute / self.real if self.compute is not None else None


def find_bottleneck(
    real: Measurement,
    *,
    compute: Measurement | None,
    loader: Measurement | None,
    half: Measurement | None,
    space: ResolvedSpace,
    headroom_bytes: int | None,
) -> Bottleneck:
    """From the real loop, one kept batch, the loader without training, and one kept batch of half the size."""
    overhead = overhead_share(compute, half)
    bound = Bound.COMPUTE
    if real.data_wait_share >= INPUT_SHARE:
        bound = Bound.INPUT
    elif overhead is not None and overhead >= OVERHEAD_SHARE:
        bound = Bound.OVERHEAD
    worth = [a.knob.name for a in space.axes if a.knob.loader == (bound is Bound.INPUT)]
    return Bottleneck(
        bound=bound,
        real=real.samples_per_s,
        compute=compute.samples_per_s if compute is not None else None,
        loader=loader.samples_per_s if loader is not None else None,
        unit=real.unit,
        wait_share=real.data_wait_share,
        overhead_share=overhead,
        headroom_bytes=headroom_bytes,
        knobs=tuple(worth),
    )


def overhead_share(whole: Measurement | None, half: Measurement | None) -> float | None:
    """The constant of the line through the step times of a batch and of half of it, as a share of the whole one's."""
    if whole is None or half is None or not whole.steps_per_s or not half.steps_per_s:
        return None
    whole_s, half_s = 1 / whole.steps_per_s, 1 / half.steps_per_s
    return min(1.0, max(0.0, (2 * half_s - whole_s) / whole_s))
