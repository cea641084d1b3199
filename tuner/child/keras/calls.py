"""Calls of the training function: who is told of them."""

from __future__ import annotations

from collections.abc import Callable

from ..applied import AppliedRun
from ..tensorflow.types import Result
from .types import Model, TrainFunction

STEPPING = "_autotune_stepping"
"""Marks a training function whose calls are seen."""


def making_for(applied: AppliedRun, backend: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """A patch of ``make_train_function``, which ``fit`` and ``train_on_batch`` begin with: an applied run is told of
    the backend, and of each step.
    """

    def making(original: Callable[..., Result]) -> Callable[..., Result]:
        def make_train_function(model: Model, *args: object, **kwargs: object) -> Result:
            applied.computes_with(backend)
            result = original(model, *args, **kwargs)
            function = model.train_function
            if function is not None and not hasattr(function, STEPPING):
                model.train_function = told_to(applied, function, int(model.steps_per_execution))
            return result

        return make_train_function

    return making


def told_to(applied: AppliedRun, function: TrainFunction, per_call: int) -> TrainFunction:
    """The training function, whose calls an applied run is told of."""

    def train_function(*args: object) -> object:
        result = function(*args)
        for _ in range(per_call):
            applied.stepped()
        return result

    setattr(train_function, STEPPING, True)
    return train_function
