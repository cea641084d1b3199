"""A batch in parts: Keras' own training step takes the gradient of its batch part by part, and updates the model once.

Only the samples in one forward pass change. The script's batches and steps stay as they are, and with them all that
counts them: schedules, callbacks, averages of the weights, checkpoints, the last batch of an epoch. Keras' own
accumulation changes each of these: it counts every part as a step.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

from ..patches import instead, patch
from ..session import Session
from ..tensorflow.functions import not_converted
from ..tensorflow.types import ConcreteFunction, Structure
from .counters import leading_dimension
from .masks import MaskWatch, makes_masks
from .obstacles import ObstacleWatch
from .types import Logs, Model

OWN_LOSS = "how the loss of the script's own training step depends on the batch is unknown"
OWN_PARTS = "the script accumulates gradients itself"
TrainStep = Callable[..., Any]
"""Keras' own ``train_step``: the model's logs of one batch, and with JAX its state."""
State = tuple[Sequence[Any], ...]
"""JAX's arrays: of what is trained, of what is not, of the optimizer and of the metrics."""
Rows = Any
"""A number of rows: an int, or a scalar of TensorFlow's where only the running graph knows it."""


class SplitWatch:
    """Patches Keras' own ``train_step``, where the config asks for it.

    ``parts``: into how many a batch of the current ``fit`` is split, and ``newest`` of the newest ``fit``. ``seen``:
    into how many the newest step was; 0 where none was split. ``refused``: why the newest ``fit`` splits none; "" where
    it does. ``masks`` and ``obstacles``: tell of the models whose batches can't be split.
    """

    def __init__(self, session: Session, backend: str, masks: MaskWatch, obstacles: ObstacleWatch) -> None:
        self.session = session
        self.backend = backend
        self.masks = masks
        self.obstacles = obstacles
        self.refused = ""
        self.parts = self.newest = 1
        self.seen = 0
        self._asks = False
        self._made_for: weakref.WeakKeyDictionary[Model, int] = weakref.WeakKeyDictionary()

    def install(self, trainer: type) -> None:
        """Patches the class that defines ``fit``, which has Keras' own training step."""
        if "grad_accumulation" in self.session.request.config:
            steps = {"tensorflow": self._on_tensorflow, "jax": self._on_jax, "torch": self._on_torch}
            patch(trainer, "train_step", steps[self.backend])

    @property
    def wanted(self) -> int:
        """Into how many parts the config splits batches."""
        return int(self.session.knobs.wanted("grad_accumulation") or 1)

    def begin(self, model: Model, parts: int) -> bool:
        """A ``fit`` begins. Returns whether the model's training function may have been made for other parts."""
        self.refused = self.why_whole(model) if parts > 1 else ""
        parts = 1 if self.refused else parts
        self._asks = parts > 1 and makes_masks(model)
        self.parts = self.newest = parts
        is_new = parts != self._made_for.get(model, 1)
        self._made_for[model] = parts
        return is_new

    def why_whole(self, model: Model, graphs: Iterable[ConcreteFunction] = (), rows: int = 0) -> str:
        """What was seen so far for which the model's batches can't be split; "" for nothing.

        ``graphs``: what its training step was traced into, with TensorFlow. ``rows``: of its batches; 0 for unknown.
        """
        return self.masks.why_whole(model) or self.obstacles.why(model, graphs, rows)

    def end(self) -> None:
        """The ``fit`` is over."""
        self.parts = 1

    def _stays_whole(self, model: Model, data: Structure, state: Iterable[tuple[object, object]] = ()) -> bool:
        """Whether a step takes its batch as it is; ``state`` as ``MaskWatch.ask`` takes it."""
        if self._asks:
            self._asks = False
            self.refused = self.masks.ask(model, data, state)
            if self.refused:
                self.parts = self.newest = self._made_for[model] = 1
        return self.parts == 1

    # one step, on each backend

    def _on_tensorflow(self, original: TrainStep) -> TrainStep:
        def train_step(model: Model, data: Structure) -> Logs:
            if self._stays_whole(model, data):
                whole: Logs = original(model, data)
                return whole
            self.seen = self.parts
            return GraphStep(sys.modules["tensorflow"], original, model).run(data, self.parts)

        return not_converted(train_step)

    def _on_torch(self, original: TrainStep) -> TrainStep:
        def train_step(model: Model, data: Structure) -> Logs:
            if self._stays_whole(model, data):
                whole: Logs = original(model, data)
                return whole
            self.seen = self.parts
            torch = sys.modules["torch"]
            logs: Logs = {}
            total: list[Any] = []
            variables: Sequence[object] = ()
            taken: list[tuple[Sequence[Any], Sequence[object]]] = []
            with instead(model.optimizer, "apply", lambda *given: taken.append(given)):
                for part, share in _parts(data, self.parts):
                    logs = original(model, part)
                    if taken:  # a model without weights takes no gradients
                        gradients, variables = taken.pop()
                        total = _added(total, gradients, share)
            if variables:
                with torch.no_grad():
                    model.optimizer.apply(total, variables)
            return logs

        return train_step

    def _on_jax(self, original: TrainStep) -> TrainStep:
        def train_step(model: Model, state: State, data: Structure) -> tuple[Logs, State]:
            if self._stays_whole(model, data, _held(model, *state)):
                whole: tuple[Logs, State] = original(model, state, data)
                return whole
            self.seen = self.parts
            barrier = sys.modules["jax"].lax.optimization_barrier
            logs: Logs = {}
            total: list[Any] = []
            taken: list[Sequence[Any]] = []

            def take(variables: object, gradients: Sequence[Any], trained: object) -> tuple[object, object]:
                taken.append(gradients)
                return trained, variables

            with instead(model.optimizer, "stateless_apply", take):
                for part, share in _parts(data, self.parts):
                    # A part begins when the gradient of the one before is there: their activations share their memory.
                    waiting, total = barrier((part, total)) if total else (part, total)
                    logs, state = original(model, state, waiting)
                    total = _added(total, taken.pop(), share)
            trained, others, variables, metrics = state
            trained, variables = model.optimizer.stateless_apply(variables, total, trained)
            return logs, (trained, others, variables, metrics)

        return train_step


class GraphStep:
    """One training step of TensorFlow's in parts, while its graph is built or eagerly.

    ``step`` is Keras' own. The rows of a batch may be known when the graph runs only: a part without any is left out
    then.
    """

    def __init__(self, tf: ModuleType, step: TrainStep, model: Model) -> None:
        self.tf = tf
        self.step = step
        self.model = model
        self.variables: list[tuple[bool, object]] = []

    def run(self, data: Structure, parts: int) -> Logs:
        """Trains on the batch. Raises ``ValueError`` where its tensors differ in their rows."""
        tf = self.tf
        rows = self._rows(data)
        bounds = [-((-place * rows) // parts) for place in range(parts + 1)]
        logs, total = self._part(self._between(data, 0, bounds[1]), self._share(bounds[1], rows))
        for begin, end in pairwise(bounds[1:]):
            if isinstance(rows, int) and end == begin:
                continue
            # A part begins when the gradient of the one before is there: their activations share their memory.
            with tf.control_dependencies(tf.nest.flatten(total, expand_composites=True)):
                part, share = self._between(data, begin, end), self._share(end - begin, rows)
                if isinstance(rows, int):
                    logs, total = self._joined(part, share, total)
                else:
                    logs, total = tf.cond(end > begin, self._later(part, share, total), _constant(logs, total))
        if self.variables:
            gradients = iter(total)
            pairs = [(next(gradients) if trained else None, variable) for trained, variable in self.variables]
            self.model.optimizer.apply_gradients(pairs)
        return logs

    def _part(self, part: Structure, share: Rows) -> tuple[Logs, list[Any]]:
        """The step's logs, and its share of each gradient that there is."""
        tf = self.tf
        taken: list[tuple[Any, object]] = []
        with instead(self.model.optimizer, "apply_gradients", lambda pairs, **_: taken.extend(pairs)):
            logs: Logs = self.step(self.model, part)
        self.variables = [(gradient is not None, variable) for gradient, variable in taken]

        def weighted(gradient: Any) -> Any:
            if isinstance(gradient, tf.IndexedSlices):
                return tf.IndexedSlices(
                    gradient.values * tf.cast(share, gradient.values.dtype), gradient.indices, gradient.dense_shape
                )
            return gradient * tf.cast(share, gradient.dtype)

        return logs, [weighted(gradient) for gradient, _ in taken if gradient is not None]

    def _joined(self, part: Structure, share: Rows, total: list[Any]) -> tuple[Logs, list[Any]]:
        logs, gradients = self._part(part, share)
        return logs, [self._sum(a, b) for a, b in zip(total, gradients, strict=True)]

    def _later(
        self, part: Structure, share: Rows, total: list[Any]
    ) -> Callable[[], tuple[Logs, list[Any]]]:
        return not_converted(lambda: self._joined(part, share, total))

    def _sum(self, a: Any, b: Any) -> Any:
        """Rows of an embedding stay apart, as in the whole batch: some optimizers tell them from their sum."""
        tf = self.tf
        if isinstance(a, tf.IndexedSlices) and isinstance(b, tf.IndexedSlices):
            values, indices = tf.concat([a.values, b.values], 0), tf.concat([a.indices, b.indices], 0)
            return tf.IndexedSlices(values, indices, a.dense_shape)
        return tf.convert_to_tensor(a) + tf.convert_to_tensor(b)

    def _share(self, rows: Rows, of: Rows) -> Rows:
        if isinstance(rows, int) and isinstance(of, int):
            return rows / of
        return self.tf.cast(rows, self.tf.float32) / self.tf.cast(of, self.tf.float32)

    # rows

    def _rows(self, data: Structure) -> Rows:
        counts = [rows for rows in map(self._rows_of, self.tf.nest.flatten(data)) if rows is not None]
        known = {rows for rows in counts if isinstance(rows, int)}
        _check_alike(known)
        if not counts:
            raise ValueError("a batch without rows can't be split")
        if not all(isinstance(rows, int) for rows in counts):
            for rows in counts[1:]:
                self.tf.debugging.assert_equal(rows, counts[0], "a batch can't be split whose tensors differ in rows")
        return known.pop() if known else counts[0]

    def _rows_of(self, value: Any) -> Rows | None:
        """None for what has no rows: a number, or nothing at all."""
        tf = self.tf
        shape: Any = getattr(value, "shape", ())
        if isinstance(value, tf.RaggedTensor):
            return tf.cast(value.nrows(), tf.int32)
        if isinstance(value, tf.SparseTensor):
            return tf.cast(value.dense_shape[0], tf.int32)
        if isinstance(value, tf.Tensor) and (shape.rank is None or (shape.rank and shape[0] is None)):
            return tf.shape(value)[0]
        return int(shape[0]) if len(shape) else None

    def _between(self, data: Structure, begin: Rows, end: Rows) -> Structure:
        """The rows from ``begin`` to ``end``; what has no rows belongs to each part."""
        tf = self.tf

        def cut(value: Any) -> Any:
            if isinstance(value, tf.SparseTensor):
                first = tf.cast(tf.stack([begin]), tf.int64)
                start = tf.concat([first, tf.zeros_like(value.dense_shape[1:])], 0)
                size = tf.concat([tf.cast(tf.stack([end - begin]), tf.int64), value.dense_shape[1:]], 0)
                return tf.sparse.slice(value, start, size)
            return value if self._rows_of(value) is None else value[begin:end]

        cut_data: Structure = tf.nest.map_structure(cut, data)
        return cut_data


def _constant(logs: Logs, total: list[Any]) -> Callable[[], tuple[Logs, list[Any]]]:
    return not_converted(lambda: (logs, total))


def _held(
    model: Model, trained: Sequence[object], others: Sequence[object], _: object, metrics: Sequence[object]
) -> Iterator[tuple[object, object]]:
    """The model's variables and their values in a step of JAX's."""
    variables = (*model.trainable_variables, *model.non_trainable_variables, *model.metrics_variables)
    return zip(variables, (*trained, *others, *metrics), strict=True)


def _parts(data: Structure, parts: int) -> Iterator[tuple[Structure, float]]:
    """The parts of a batch that have rows, and the share of its rows that each has."""
    tree = sys.modules["keras"].tree
    _check_alike({int(value.shape[0]) for value in tree.flatten(data) if getattr(value, "shape", ())})
    rows = leading_dimension(data)
    bounds = [-((-place * rows) // parts) for place in range(parts + 1)]

    def cut(begin: int, end: int) -> Structure:
        part: Structure = tree.map_structure(
            lambda value: value[begin:end] if getattr(value, "shape", ()) else value, data
        )
        return part

    for begin, end in pairwise(bounds):
        if end > begin:
            yield cut(begin, end), (end - begin) / rows


def _added(total: Sequence[Any], gradients: Sequence[Any], share: float) -> list[Any]:
    """The total with a part's gradients by their share; None, of a variable that has none, stays None."""
    parts = [None if gradient is None else gradient * share for gradient in gradients]
    return [None if b is None else a + b for a, b in zip(total, parts, strict=True)] if total else parts


def _check_alike(rows: set[int]) -> None:
    if len(rows) > 1:
        raise ValueError(f"a batch can't be split: its tensors have {' and '.join(map(str, sorted(rows)))} rows")
