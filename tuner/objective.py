"""What an objective declares: a figure of a measurement, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tuner.errors import ObjectiveError
from tuner.model import Measurement


@dataclass(frozen=True)
class Objective:
    """A measurement's figure in ``unit``, and whether more of it is better.

    ``source`` is where it was loaded from, the name of an entry point or a file's path, "" for one that wasn't;
    ``sha256`` the content of that file, "" without one; ``planned_samples`` the length of training over which the start
    is spread, None without one. All are filled by autotune, and serve to load the same objective again.
    """

    name: str
    unit: str
    maximize: bool
    score: Callable[[Measurement], float]
    source: str = ""
    planned_samples: int | None = None
    sha256: str = ""

    @property
    def text(self) -> str:
        """Its name and unit."""
        return f"{self.name} ({self.unit})"

    @property
    def is_rate(self) -> bool:
        """Whether it follows the rate of samples, and may be judged by it in advance."""
        return self.maximize and self.unit.endswith("/s")

    @property
    def gains_of(self) -> str:
        """What its gains are gains of, for people: behind how many times."""
        if self.planned_samples is not None:
            return f"the speed over {self.planned_samples:,} samples, start included"
        return "the speed" if self.is_rate else f"as good by {self.name}"


def amortised(objective: Objective, planned_samples: int) -> Objective:
    """The rate over a whole training of so many samples: what is paid once is charged to it, which is its start, with
    compilation, and what its first samples take longer than later ones, as where they fill a cache.

    It has no figure (NaN) where samples can't be counted: the rate is one of steps then, and samples are planned.
    That start is one with nothing compiled yet, wherever the study has seen one: see ``tuner.analysis.cold_start``.
    Raises ``ObjectiveError`` for an objective that isn't a rate.
    """
    if not objective.is_rate:
        raise ObjectiveError(
            f"{objective.name} is in {objective.unit}: only a rate can include the start-up time",
            hint="leave out --planned-samples, or choose another objective",
        )

    def score(measurement: Measurement) -> float:
        if measurement.unit != "samples":
            return math.nan
        rate = objective.score(measurement)
        return planned_samples / (measurement.paid_once_s + planned_samples / rate)

    return replace(
        objective, name=f"{objective.name} over {planned_samples} samples", score=score, planned_samples=planned_samples
    )


RATE = Objective("rate", "samples/s or steps/s", True, lambda measurement: measurement.rate)
"""What a measurement shows whatever was optimised: the rate itself."""
