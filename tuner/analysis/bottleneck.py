"""What limits a training loop: its input, its computing, or what each step costs besides its samples. Pure.

From the real loop's measurement and those of its sides, which a probe runs alone: computing on one kept batch, on half
a batch, and fetching without training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tuner.analysis.contention import MOVED, Host, contamination_of
from tuner.analysis.gain import runs_as_written
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Measurement, Side, Trial, baseline_of
from tuner.space.resolved import ResolvedSpace

INPUT_SHARE = 0.15
"""A loop whose data take so large a share of its time is input-bound."""
OVERHEAD_SHARE = 0.5
"""A loop of whose steps so large a share doesn't grow with the batch is overhead-bound."""
LEAST_FROM_INPUT = 1.03
"""A perfect loader that would bring less isn't worth looking for."""
BATCH = "batch_size"
_MOST_WAIT = 0.99


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
    the batch: launching, Python, the optimizer. ``disturbed``: by what one of these was, for people; "" where all were
    calm. ``on_host``: the cores that fetch the data compute as well. ``hides_its_wait``: the loop waits for its loader
    while a device computes on, so that no loader would bring anything. ``most_input_share``: the part of the real
    loop's time that its data can take at most, as far as the loader alone tells.
    """

    bound: Bound
    real: float
    compute: float | None
    loader: float | None
    unit: str
    wait_share: float | None
    overhead_share: float | None
    disturbed: str = ""
    on_host: bool = False
    hides_its_wait: bool = False
    most_input_share: float = 1.0

    @property
    def most_from_input(self) -> float | None:
        """The ratio that a perfect loader would give. While the host waits nothing computes on it: no kept batch that
        came out slower (another batch than most, another moment) makes that ratio smaller than the wait says; nor does
        one that came out faster make it larger than what the loader takes allows.
        """
        if self.compute is None:
            return None
        least = 1 / (1 - min(_MOST_WAIT, self.wait_share or 0.0)) if self.on_host else 0.0
        most = 1 / (1 - min(_MOST_WAIT, self.most_input_share)) if self.most_input_share < 1 else math.inf
        return max(min(self.compute / self.real, most), least)

    @property
    def saved_share(self) -> float:
        """The part of the real loop's time that one kept batch saves; 0 where that wasn't measured."""
        return max(0.0, 1 - 1 / self.most_from_input) if self.most_from_input else 0.0

    @property
    def input_share(self) -> float:
        """The part of the real loop's time that its data take: waited for, or taken from computing."""
        return max(self.wait_share or 0.0, self.saved_share)


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


def find_bottleneck(
    real: Measurement, measured: Mapping[Side, Measurement], host: Host | None = None, loaders: int = 1
) -> Bottleneck:
    """From the real loop and the sides that were measured; those in another unit than the real loop don't count.

    What was disturbed, by what the ``host`` allows, shows neither that a wait costs nothing nor that steps cost more
    than their samples; neither does what may be an error of the readings. ``loaders``: so many feed the training. Where
    there are several, the loader side is the one that is asked first, and says nothing of what the others take.
    """
    alike = {side: measurement for side, measurement in measured.items() if measurement.unit == real.unit}
    compute, loader = alike.get(Side.COMPUTE), alike.get(Side.LOADER)
    half = alike.get(Side.HALF)
    on_host = host is not None and not host.feeds
    causes = [contamination_of(run, host) if run and host else "" for run in (real, compute, loader, half)]
    of_real, of_compute, _, of_half = causes
    overhead = overhead_share(compute, half, disturbed=bool(of_compute or of_half))
    bottleneck = Bottleneck(
        bound=Bound.COMPUTE,
        real=real.rate,
        compute=compute.rate if compute is not None else None,
        loader=loader.rate if loader is not None else None,
        unit=real.unit,
        wait_share=real.data_wait_share,
        overhead_share=overhead,
        disturbed=next(filter(None, causes), ""),
        on_host=on_host,
        hides_its_wait=not (on_host or of_real or of_compute) and compute is not None and _is_free(real, compute),
        most_input_share=_most_input_share(real, loader, host.cores) if host and on_host and loaders == 1 else 1.0,
    )
    if bottleneck.input_share >= INPUT_SHARE:
        return replace(bottleneck, bound=Bound.INPUT)
    if overhead is None or compute is None or half is None or of_compute or of_half:
        return bottleneck
    # The share is 2 h / w - 1 by the times h and w of half a batch and of a whole one.
    if overhead - (1 + overhead) * math.hypot(_half_width(compute), _half_width(half)) >= OVERHEAD_SHARE:
        return replace(bottleneck, bound=Bound.OVERHEAD)
    return bottleneck


def _most_input_share(real: Measurement, loader: Measurement | None, cores: int) -> float:
    """The part of the real loop's time that its data can take where the cores that compute fetch them: waited for, and
    for as long as the loader alone takes, which keeps each core from what all of them compute together.
    """
    if loader is None or real.data_wait_share is None or loader.rate <= 0:
        return 1.0
    return min(1.0, real.data_wait_share + cores * real.rate / loader.rate)


def _is_free(real: Measurement, compute: Measurement) -> bool:
    """Whether a kept batch is surely no faster than the real loop as long as that waits.

    One that is slower by more than a machine drifts was another batch than most, and shows nothing.
    """
    ratio, wait = compute.rate / real.rate, min(_MOST_WAIT, real.data_wait_share or 0.0)
    error = math.hypot(_half_width(real), _half_width(compute))
    return 1 / MOVED <= ratio < LEAST_FROM_INPUT and ratio * math.exp(error) < 1 / (1 - wait)


def _half_width(run: Measurement) -> float:
    """Half the width of the 95% interval of a rate's logarithm; infinite where there is none."""
    return math.log(run.high / run.low) / 2 if 0 < run.low <= run.high < math.inf else math.inf


def bottleneck_of(trials: Iterable[Trial], host: Host | None = None) -> Bottleneck | None:
    """From a study's trials: its baseline, or what was measured in its place, and the sides that its probe measured.

    None where either is lacking. ``host``: see ``find_bottleneck``.
    """
    trials = list(trials)
    real, written = next((run.measurement for run in runs_as_written(trials)), None), baseline_of(trials)
    measured = {t.side: t.measurement for t in trials if t.side is not None and t.measurement is not None}
    if real is None or not measured or written is None or written.outcome is None:
        return None
    return find_bottleneck(real, measured, host, len(written.outcome.knowledge.training_loaders))


def worth_turning(bottleneck: Bottleneck, space: ResolvedSpace) -> tuple[str, ...]:
    """The knobs that may relieve the bottleneck: the loader's where the loop is input-bound, else the others, and
    larger batches.
    """
    is_input = bottleneck.bound is Bound.INPUT
    larger = (space.larger,) if space.larger is not None else ()
    axes = (axis for axis in (*space.axes, *larger) if axis.knob.loader == is_input)
    return tuple(dict.fromkeys(axis.knob.name for axis in axes))


def overhead_share(whole: Measurement | None, half: Measurement | None, *, disturbed: bool = False) -> float | None:
    """The share of a step's time that doesn't grow with the batch, in [0, 1]; None where either can't be told.

    The constant of the line through the step times of a whole batch and of half of one. Half a batch that takes longer
    than a whole one, or less than half of its time, by more than a machine drifts, tells nothing where either was
    ``disturbed``.
    """
    if whole is None or half is None or not whole.steps_per_s or not half.steps_per_s:
        return None
    whole_s, half_s = 1 / whole.steps_per_s, 1 / half.steps_per_s
    if disturbed and not whole_s / 2 / MOVED <= half_s <= MOVED * whole_s:
        return None
    return min(1.0, max(0.0, (2 * half_s - whole_s) / whole_s))
