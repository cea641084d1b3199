"""Shapes of batches that a compiled training step was given: XLA compiles for each, unseen from Python and untraced."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from ..tensorflow.counters import plain_variable
from ..tensorflow.types import Tensor, Variable

_SLOTS = 8191
"""A prime: two shapes share a slot by chance only, and the second one's compilation is then taken for training."""


class CompiledShapes:
    """How many shapes training functions were given, each function's counted by themselves. They are noted in the
    graph, on the host, while it runs; where none are, nothing is made or read.
    """

    def __init__(self, tf: ModuleType) -> None:
        self._tf = tf
        self._functions = 0
        self._seen: Variable | None = None

    def another_function(self) -> int:
        """The number of a function that is made now, for which every shape is compiled again."""
        self._functions += 1
        return self._functions

    def note(self, tensors: Sequence[Tensor], function: int) -> None:
        """To be called while the graph is traced: notes the tensors' shape in each of its runs."""
        tf = self._tf
        if self._seen is None:
            with tf.init_scope(), tf.device("/CPU:0"):
                self._seen = plain_variable(tf, [0.0] * _SLOTS, "float32")
        known = [(index, tensor) for index, tensor in enumerate(tensors) if tensor.shape.rank is not None]
        # Asked where the tensors lie: to ask elsewhere would copy them there.
        shapes = [tf.shape(tensor, out_type=tf.int64) for _, tensor in known]
        with tf.device("/CPU:0"):
            code = tf.constant(4001 * (function - 1), tf.int64)
            for (index, tensor), shape in zip(known, shapes, strict=True):
                factors = [(7 * index + 2) ** 2 + 31 * axis for axis in range(tensor.shape.rank or 0)]
                code += tf.reduce_sum(shape * tf.constant(factors, tf.int64))
            self._seen.scatter_update(tf.IndexedSlices(tf.ones((), tf.float32), tf.math.floormod(code, _SLOTS)))

    @property
    def number(self) -> int:
        """So far, of all functions. Reading waits for the steps that are under way."""
        return 0 if self._seen is None else int(self._tf.reduce_sum(self._seen).numpy())
