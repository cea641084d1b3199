"""What an objective declares: a figure of a measurement, and which way is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tuner.model import Measurement


@dataclass(frozen=True)
class Objective:
    """A measurement's figure in ``unit``, and whether more of it is better."""

    name: str
    unit: str
    maximize: bool
    score: Callable[[Measurement], float]
