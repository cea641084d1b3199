"""The weights that a screen's training moves where Keras computes with JAX or PyTorch, or where no tape is watched."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

from ..movement import Movement, Movements, Samples, spread, stride
from ..session import Session
from .types import Model


class ModelWeights:
    """A group are the trainable variables of a model. On JAX their values are the training function's, as it runs."""

    def __init__(self, session: Session) -> None:
        self._movements = Movements(session)
        self._groups: weakref.WeakKeyDictionary[Model, Movement] = weakref.WeakKeyDictionary()
        self._values: Sequence[Any] = ()

    def step_begins(self, model: Model, values: Sequence[Any] | None = None) -> None:
        """Before a step: the first of each model is preceded by a look. ``values`` as in ``stepped``."""
        if self._movements.has_room and model not in self._groups:
            self._values = model.trainable_variables if values is None else values
            shapes = (tuple(each.shape) for each in model.trainable_variables)
            self._groups[model] = self._movements.begin(type(model).__name__, shapes, self._read)
            self._values = ()

    def stepped(self, model: Model, values: Sequence[Any] | None = None) -> None:
        """After a step. ``values``: of the trainable variables, where the model's own don't hold them."""
        if model in self._groups:
            self._values = model.trainable_variables if values is None else values
            self._groups[model].look()
            self._values = ()

    def _read(self) -> Samples:
        return [_sample(self._values[place]) for place in spread(len(self._values))]


def _sample(value: Any) -> Sequence[float]:
    """Of one tensor, variable or array of the backend's."""
    ops: Any = sys.modules["keras"].ops
    flat = ops.reshape(value, (-1,))
    numbers: list[float] = ops.convert_to_numpy(flat[:: stride(int(flat.shape[0]))]).astype("float64").tolist()
    return numbers
