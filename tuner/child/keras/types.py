"""The parts of Keras' objects that the child uses, as protocols: Keras isn't imported for its types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import Queue
from threading import Thread
from typing import Protocol

from ..tensorflow.types import Optimizer, Strategy, Structure, Variable

TrainFunction = Callable[..., object]
"""What a model calls for each step (or ``steps_per_execution`` of them): on TensorFlow with the epoch's iterator."""
Logs = Mapping[str, object]
"""Names of metrics, and their figures so far in this epoch."""


class Layer(Protocol):
    """A layer, or a model, which is one."""

    weights: Sequence[object]
    compute_dtype: str
    _dtype_policy: Policy

    def _flatten_layers(self, include_self: bool = True) -> Iterable[Layer]: ...


class Metric(Protocol):
    """A metric that takes a mean: the sum and number of what it was given."""

    name: str
    total: object
    count: object


class KerasOptimizer(Optimizer, Protocol):
    """``inner_optimizer`` is declared on those that scale the loss only."""

    inner_optimizer: KerasOptimizer
    variables: Sequence[Variable]
    _iterations: Variable
    _learning_rate: Variable

    def apply(self, gradients: Sequence[object], variables: Sequence[object]) -> object: ...
    def apply_gradients(self, pairs: Iterable[tuple[object, object]]) -> object: ...
    def stateless_apply(
        self, variables: object, gradients: object, trained: object
    ) -> tuple[Sequence[object], Sequence[object]]: ...


class Model(Layer, Protocol):
    """``keras.Model``, compiled."""

    optimizer: KerasOptimizer
    loss: object
    metrics: Sequence[Metric]
    run_eagerly: bool
    jit_compile: bool
    steps_per_execution: int
    train_function: TrainFunction | None
    train_step: Callable[..., object]
    distribute_strategy: Strategy
    variables: Sequence[Variable]
    trainable_variables: Sequence[Variable]
    non_trainable_variables: Sequence[Variable]
    metrics_variables: Sequence[Variable]

    def __call__(self, x: Structure, *, training: bool) -> object: ...
    def make_train_function(self) -> object: ...
    def compute_loss(self, *, x: Structure, y: Structure, y_pred: object, sample_weight: Structure) -> object: ...


class Policy(Protocol):
    """A dtype policy."""

    name: str


class Callback(Protocol):
    """``params`` holds, among others, ``steps``: how many an epoch has; None where Keras doesn't know."""

    params: Mapping[str, int | None]


class PyDataset(Protocol):
    """``keras.utils.PyDataset``; ``workers`` prepare its batches."""

    workers: int


class Future(Protocol):
    """A batch that a worker prepares."""

    def ready(self) -> bool: ...


class Enqueuer(Protocol):
    """Has workers prepare the batches of a PyDataset; its thread ends once all of an epoch's were asked for."""

    py_dataset: object
    future_queue: Queue[Future]
    ready_queue: Queue[object]
    run_thread: Thread


class StepIterator(Protocol):
    """What TensorFlow's training function fetches its batches from."""

    def get_next(self) -> Structure: ...


class EpochIterator(Protocol):
    """Keras' own iterator over an epoch, on TensorFlow."""

    steps_per_execution: int
    _distributed_dataset: Repeatable
    _enumerate_iterator: Callable[[], Iterator[object]]


class Repeatable(Protocol):
    """A dataset, be it distributed or not."""

    def take(self, count: int) -> Repeatable: ...
    def cache(self) -> Repeatable: ...
    def repeat(self) -> Repeatable: ...
