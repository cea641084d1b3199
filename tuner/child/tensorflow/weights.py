"""The weights that a screen's training moves, whatever updates them: those of which tapes take gradients."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

from ..movement import Movement, Movements, Samples, spread, stride
from ..session import Session
from .types import Structure, Tensor, Variable

_COPIED = 1 << 18
"""Of a tensor with more elements than that a part is read where it lies."""


class TapeWeights:
    """A group are the variables whose gradients are taken together, as far as they are in no group yet: in a GAN the
    generator's, and the other's.
    """

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self._movements = Movements(session)
        self._tf = tf
        self._groups: dict[int, Movement] = {}
        self._kept: list[Variable] = []
        self._lock = threading.Lock()

    def gradient_taken(self, sources: Structure) -> None:
        """Of these variables, eagerly or while a graph is built; each replica does so in a thread of its own."""
        if not self._movements.watching:
            return
        variables: Sequence[Variable] = [each for each in self._tf.nest.flatten(sources) if hasattr(each, "assign")]
        with self._lock:
            new = [variable for variable in variables if id(variable) not in self._groups]
            if new and self._movements.has_room:
                self._kept += new  # one that took its place would bear its number
                with self._tf.init_scope():
                    group = self._movements.begin("GradientTape", (each.shape for each in new), _reader(self._tf, new))
                self._groups.update({id(variable): group for variable in new})

    def eager_step_begins(self, sources: Structure) -> None:
        """An eager gradient of these was taken: what the one before it led to has moved them by now."""
        if self._movements.watching:
            found = [self._groups.get(id(source)) for source in self._tf.nest.flatten(sources)]
            for group in dict.fromkeys(found):
                if group is not None:
                    group.look()

    def stepped(self) -> None:
        """A call has ended that may have moved any of them."""
        self._movements.look()


def _reader(tf: ModuleType, variables: Sequence[Variable]) -> Callable[[], Samples]:
    """Reads a sample of these variables, eagerly. What it gives raises where they have no value yet."""

    def read() -> Samples:
        floating = [each for each in variables if tf.as_dtype(each.dtype).is_floating and 0 not in tuple(each.shape)]
        return [_sample(tf.convert_to_tensor(floating[place])) for place in spread(len(floating))]

    def _sample(tensor: Tensor) -> Sequence[float]:
        size = math.prod(each or 0 for each in tensor.shape.as_list())
        if size > _COPIED:
            tensor, size = tf.reshape(tensor, [-1])[:: stride(size)], 0
        values: list[float] = tf.cast(tensor, tf.float64).numpy().ravel()[:: stride(size)].tolist()
        return values

    return read
