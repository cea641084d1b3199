"""Copies of what a training step changes: weights, what optimizers remember, metrics, states of random generators."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from ..tensorflow.types import Array, ConcreteFunction, Variable
from .types import Model


class KeptVariables:
    """Variables of TensorFlow's, copied into the host's memory and put back bit for bit."""

    def __init__(self, variables: Iterable[Variable]) -> None:
        self._variables = list({id(each): each for each in variables}.values())
        self._values: list[Array] = []

    @property
    def nbytes(self) -> int:
        """What the copies take."""
        tf: Any = sys.modules["tensorflow"]
        sizes = (math.prod(each or 0 for each in variable.shape) for variable in self._variables)
        return sum(
            size * tf.as_dtype(variable.dtype).size for size, variable in zip(sizes, self._variables, strict=True)
        )

    def keep(self) -> None:
        """Copies everything as it is now."""
        self._values = [variable.numpy() for variable in self._variables]

    def put_back(self) -> None:
        """Everything is as it was."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)


def changed_by(model: Model, graphs: Iterable[ConcreteFunction]) -> Iterator[Variable]:
    """The variables that a training step may change, some of them twice: the model's own and those of its optimizers,
    and whatever else the step's ``graphs`` were seen to touch as they were traced.
    """
    optimizer = sys.modules["keras"].optimizers.Optimizer
    own: list[Any] = [*model.variables, *model.metrics_variables]
    for each in (model.optimizer, *vars(model).values()):
        if isinstance(each, optimizer):
            own += each.variables
    for graph in graphs:
        own += graph.graph.variables
    for variable in own:
        yield getattr(variable, "_value", variable)  # Keras' own wrap one of TensorFlow's
