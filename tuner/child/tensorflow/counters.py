"""What a traced training step counts by itself while it runs: losses, gradients, samples."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .graphs import OUR_SCOPE


def plain_variable(tf: ModuleType, value: Any, dtype: str) -> Any:
    """A variable outside of any graph, which graphs may add to; not before the script's own work begins.

    Of the class itself, not by tf.Variable: a strategy would make a mirrored one, a tf.function one of its own.
    """
    variable = sys.modules["tensorflow.python.ops.resource_variable_ops"].ResourceVariable
    with tf.init_scope():
        return variable(tf.constant(value, dtype), trainable=False, name=OUR_SCOPE)


@dataclass(frozen=True)
class Counts:
    """Totals since the beginning."""

    loss_sum: float = 0.0
    losses: float = 0.0
    gradients: float = 0.0
    samples: float = 0.0


class Tally:
    """One variable outside of the graph that the graph adds to; reading it waits for the device."""

    def __init__(self, tf: ModuleType) -> None:
        self.tf = tf
        self._variable: Any = None
        self._largest: Any = None

    def add(self, *, loss: Any = None, gradients: int = 0, samples: Any = 0) -> None:
        """Called while a graph is built: from here on each of its runs counts."""
        tf = self.tf
        with tf.name_scope(OUR_SCOPE):
            mean = tf.constant(0, tf.float64) if loss is None else tf.reduce_mean(tf.cast(loss, tf.float64))
            values = [mean, float(loss is not None), float(gradients), tf.cast(samples, tf.float64)]
            self._made().assign_add(tf.stack([tf.cast(value, tf.float64) for value in values]))

    def add_batch(self, rows: Any) -> None:
        """As ``add``, for a batch of so many samples."""
        self.add(samples=rows)
        with self.tf.name_scope(OUR_SCOPE):
            self._largest.assign(self.tf.maximum(self._largest, self.tf.cast(rows, self.tf.float64)))

    def _made(self) -> Any:
        if self._variable is None:
            self._variable = plain_variable(self.tf, [0.0] * 4, "float64")
            self._largest = plain_variable(self.tf, 0.0, "float64")
        return self._variable

    def read(self) -> Counts:
        """What was counted so far."""
        return Counts() if self._variable is None else Counts(*map(float, self._variable.numpy()))

    @property
    def largest(self) -> int:
        """Samples in the largest batch."""
        return 0 if self._largest is None else int(self._largest.numpy())
