"""The gradient of a screen's first update under Keras on TensorFlow, and the data that it was taken on.

An accumulated batch must give what the whole one gives. Both are recorded in the graph: a compiled step runs no Python.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType

from ..patches import patch
from ..records import FirstGradient
from ..session import Session
from ..tensorflow.counters import plain_variable
from ..tensorflow.graphs import draws_numbers
from ..tensorflow.types import ConcreteFunction, Result, Structure, Tensor, Variable
from .model import compute_dtypes, inner_optimizer
from .types import KerasOptimizer, Model

_UNSEEN = -1.0
_EXACT = frozenset({"float32", "float64"})


class GradientWatch:
    """Records the first update of a seeded trial's first model, once. ``waiting``: whether that is still to come."""

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self.session = session
        self.tf = tf
        self.waiting = session.request.seed is not None and session.measuring
        self._model: Model | None = None
        self._norm: Variable | None = None
        self._inputs: dict[int, Variable] = {}
        self._seeds: list[object] = []

    def install(self) -> None:
        """Patches the beginning of an optimizer's update: there the gradients of an accumulated batch are one."""
        if self.waiting:
            patch(sys.modules["keras.src.optimizers.base_optimizer"].BaseOptimizer, "_clip_gradients", self._clip)

    def prepare(self, model: Model) -> None:
        """Makes the variable that holds the norm, outside of any graph."""
        if not self.waiting or self._model is not None:
            return
        if model.distribute_strategy.num_replicas_in_sync > 1 or model.steps_per_execution > 1:
            self.waiting = False  # each replica has a part of it; and after several steps the first isn't seen alone
            return
        self._model, self._seeds = model, _seed_states(model)
        self._norm = plain_variable(self.tf, _UNSEEN, "float32")

    def batch_begins(self, data: Structure) -> None:
        """A micro-batch is about to be trained on; called while the training function is traced or runs."""
        tf = self.tf
        if not self.waiting or self._model is None:
            return
        for place, tensor in enumerate(tf.nest.flatten(data)):
            if isinstance(tensor, tf.Tensor) and (tensor.dtype.is_floating or tensor.dtype.is_integer):
                with tf.device("/CPU:0"):
                    if place not in self._inputs:
                        self._inputs[place] = plain_variable(self.tf, [0.0, 0.0], "float64")
                    elements = tf.cast(tf.size(tensor), tf.float64)
                    self._inputs[place].assign_add(tf.stack([elements, self._weighted_sum(tensor)]))

    def stepped(self, updates: int, samples: int, graphs: Iterable[ConcreteFunction]) -> None:
        """A call of the training function has ended, with so many updates; ``samples`` were trained on so far."""
        if not self.waiting or self._model is None or self._norm is None or not updates:
            return
        self.waiting = False
        norm = float(self._norm.numpy())
        if norm == _UNSEEN:
            return  # another optimizer updates the model
        # A layer that draws numbers has moved its seed on; a function that does so shows it in its graph.
        random = _seed_states(self._model) != self._seeds or any(draws_numbers(graph) for graph in graphs)
        inputs = [self._inputs[place].numpy() for place in sorted(self._inputs)]
        self.session.recorder.emit(
            FirstGradient(
                norm=norm, samples=samples, exact=self._is_exact(self._model), random=random,
                inputs=tuple((float(elements), float(weighted)) for elements, weighted in inputs),
            )
        )  # fmt: skip

    def _clip(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def _clip_gradients(optimizer: KerasOptimizer, gradients: Sequence[object]) -> Result:
            if self.waiting and self._model is not None and optimizer is inner_optimizer(self._model):
                self._record_norm(gradients)
            return original(optimizer, gradients)

        return _clip_gradients

    def _record_norm(self, gradients: Iterable[object]) -> None:
        """Assigns the gradients' norm while a graph is built: the first run of it stays."""
        tf = self.tf
        if self._norm is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an embedding's gradient is made dense: its rows may come twice
            dense = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients if g is not None]
        unseen = tf.equal(self._norm, _UNSEEN)
        self._norm.assign(tf.where(unseen, tf.linalg.global_norm(dense), self._norm))

    def _weighted_sum(self, tensor: Tensor) -> Tensor:
        """The same for the same samples, in one batch or in several; another one for an image that is flipped."""
        tf = self.tf
        rows = tf.reshape(tf.cast(tensor, tf.float64), [tf.shape(tensor)[0] if tensor.shape.rank else 1, -1])
        summed = tf.reduce_sum(rows, 0)
        weighted: Tensor = tf.reduce_sum(summed * tf.cos(tf.range(tf.size(summed), dtype=tf.float64)))
        return weighted

    def _is_exact(self, model: Model) -> bool:
        """Whether layers compute in full float32."""
        full = set(compute_dtypes(model)) <= _EXACT
        return full and not self.session.device.tensorflow_rounds(self.tf)


def _seed_states(model: Model) -> list[object]:
    """The states of the generators that the model's layers draw from."""
    states = [v for v in model.non_trainable_variables if v.path.endswith("seed_generator_state")]
    return [v.numpy().tolist() for v in states]
