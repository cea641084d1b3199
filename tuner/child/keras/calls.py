"""Calls of the training function: who is told of them."""

from __future__ import annotations

from ..applied import AppliedRun
from .types import TrainFunction

STEPPING = "_autotune_stepping"
"""Marks a training function whose calls are seen."""


def told_to(applied: AppliedRun, function: TrainFunction, per_call: int) -> TrainFunction:
    """The training function, whose calls an applied run is told of."""

    def train_function(*args: object) -> object:
        result = function(*args)
        for _ in range(per_call):
            applied.stepped()
        return result

    setattr(train_function, STEPPING, True)
    return train_function
