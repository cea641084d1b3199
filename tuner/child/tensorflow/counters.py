"""What a traced training step counts by itself while it runs: losses, gradients, samples."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from types import ModuleType

from .graphs import OUR_SCOPE
from .types import Tensor, Variable


def plain_variable(tf: ModuleType, value: float | list[float], dtype: str) -> Variable:
    """A variable outside of any graph, which graphs may add to. Starts the runtime: not before training begins.

    Of the class itself, not by tf.Variable: a strategy would make a mirrored one, a tf.function one of its own.
    """
    variable = sys.modules["tensorflow.python.ops.resource_variable_ops"].ResourceVariable
    with tf.init_scope():
        plain: Variable = variable(tf.constant(value, dtype), trainable=False, name=OUR_SCOPE)
    return plain


@dataclass(frozen=True)
class Counts:
    """Totals since the beginning: sum and number of losses, gradients that were taken, samples of batches."""

    loss_sum: float = 0.0
    losses: float = 0.0
    gradients: float = 0.0
    samples: float = 0.0


class Counters:
    """What one training function counts: a variable that its graph adds to. Reading it waits for the device."""

    def __init__(self, tf: ModuleType) -> None:
        self.tf = tf
        self._totals: Variable | None = None
        self._largest: Variable | None = None

    def add(
        self, *, loss: Tensor | None = None, is_part: bool = False, gradients: int = 0, samples: Tensor | int = 0
    ) -> None:
        """Adds to the graph that is being built: from here on each of its runs counts.

        ``is_part``: the loss is a further replica's, and adds to the one that is counted.
        """
        tf = self.tf
        totals, _ = self._variables()
        # Another replica's operations are put on its device, where the variable isn't.
        with tf.name_scope(OUR_SCOPE), tf.device(totals.device) if is_part else nullcontext():
            mean = tf.constant(0, tf.float64) if loss is None else tf.reduce_mean(tf.cast(loss, tf.float64))
            values = [mean, float(loss is not None and not is_part), float(gradients), tf.cast(samples, tf.float64)]
            totals.assign_add(tf.stack([tf.cast(value, tf.float64) for value in values]))

    def add_batch(self, rows: Tensor | int) -> None:
        """As ``add``, for a batch of so many samples."""
        self.add(samples=rows)
        _, largest = self._variables()
        with self.tf.name_scope(OUR_SCOPE):
            largest.assign(self.tf.maximum(largest, self.tf.cast(rows, self.tf.float64)))

    def _variables(self) -> tuple[Variable, Variable]:
        """The totals and the largest batch; made where there are none yet."""
        if self._totals is None or self._largest is None:
            self._totals = plain_variable(self.tf, [0.0] * 4, "float64")
            self._largest = plain_variable(self.tf, 0.0, "float64")
        return self._totals, self._largest

    def read(self) -> Counts:
        """What was counted so far."""
        return Counts() if self._totals is None else Counts(*map(float, self._totals.numpy()))

    @property
    def largest(self) -> int:
        """Samples in the largest batch; 0 where none was counted."""
        return 0 if self._largest is None else int(self._largest.numpy())
