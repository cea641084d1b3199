"""What else than a mask makes the parts of a batch train otherwise than the whole: see ``split.py``.

A loss that a layer adds may be a sum over the rows that it sees. A state that each forward pass changes is changed once
a part. And a loss of the script's own, be it a function, a class or the model's ``compute_loss``, may be anything, as
may what a layer of its own does with a batch: where a step draws random numbers, no screen can hold the gradient of the
parts to that of the whole. There the model is asked about rows with and without others beside them.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from ..call_sites import is_library
from ..patches import patch
from ..tensorflow.functions import not_converted
from ..tensorflow.graphs import draws_numbers
from ..tensorflow.types import ConcreteFunction, Result
from .reductions import reduction_of, why_no_parts
from .types import Model

UNCHECKED = "its loss is the script's own, and its step draws random numbers: no gradient can be compared"
MIXED = "what its model gives for a sample goes by the others of the batch, and its step draws random numbers"
UNASKED = "whether what its model gives for a sample goes by the others of the batch can't be told"
ROWS = 8
FEWER = (1, 2, 4)
"""So many rows are asked about, no more than a batch has, and so many of them alone: one of these may have the same
answers by chance.
"""
TOLERANCE = 0.05
"""Of the largest number among the answers: sums that are taken otherwise differ by far less, in bfloat16 as well."""
_STEADY = frozenset({"Normalization", "Discretization"})
"""Keras' layers whose states are set before the training."""
Values = dict[int, Any]
"""A variable, by its identity → its value as an array."""


class ObstacleWatch:
    """Patches what adds a loss, and remembers what the states of a model were.

    ``model``: of the current ``fit``; None outside of any.
    """

    def __init__(self, keras: ModuleType) -> None:
        self.keras = keras
        self.model: Model | None = None
        self._adding: weakref.WeakKeyDictionary[Model, str] = weakref.WeakKeyDictionary()
        self._states: weakref.WeakKeyDictionary[Model, Values] = weakref.WeakKeyDictionary()
        self._asked: weakref.WeakKeyDictionary[Model, str] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Called once Keras is imported."""
        patch(self.keras.layers.Layer, "add_loss", self._add_loss)

    def _add_loss(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def add_loss(layer: object, *args: object, **kwargs: object) -> Result:
            if self.model is not None:
                self._adding.setdefault(self.model, type(layer).__name__)
            return original(layer, *args, **kwargs)

        return not_converted(add_loss)

    def stepped(self, model: Model) -> None:
        """The model was trained on a batch: it has all of its variables by now."""
        if model not in self._states:
            self._states[model] = self._values(model)

    def why(self, model: Model, graphs: Iterable[ConcreteFunction], rows: int) -> str:
        """Why parts of a batch train the model otherwise than the whole may; "" where nothing shows it.

        ``graphs``: what its training step was traced into, with TensorFlow. ``rows``: of its batches; 0 for unknown.
        """
        if model in self._adding:
            return f"{self._adding[model]} adds a loss of its own, of which it isn't known how it depends on the batch"
        changing = next(self._changing(model), "")
        if changing:
            return f"{changing} keeps a state that each forward pass changes"
        # With TensorFlow a screen holds the gradient of the parts to that of the whole.
        is_held = str(self.keras.backend.backend()) == "tensorflow"
        reduction, strictly = (reduction_of(model, own_functions=passes) for passes in (is_held, False))
        if reduction != "mean":
            return why_no_parts(reduction)
        graphs = list(graphs)
        if not (_draws(model) or any(map(draws_numbers, graphs))):
            return ""
        if strictly != reduction:
            return UNCHECKED
        if graphs and model not in self._asked:
            self._asked[model] = self._mixes(model, graphs, min(ROWS, rows or ROWS))
        return self._asked.get(model, "")

    def _mixes(self, model: Model, graphs: Iterable[ConcreteFunction], most: int) -> str:
        """Whether rows of the model's batches, asked about as in a validation, have other answers by themselves; the
        ``most`` that are asked about.

        The data are made up, of the shapes and types that the step was traced for.
        """
        keras = self.keras
        try:
            x = keras.tree.map_structure(_made_up, keras.utils.unpack_x_y_sample_weight(_batch_of(graphs))[0])
            found: list[list[Any]] = []
            with keras.StatelessScope():
                for count in (most, most, *(fewer for fewer in FEWER if fewer < most)):
                    part = keras.tree.map_structure(lambda rows, count=count: rows[:count], x)
                    answers = keras.tree.flatten(model(part, training=False))
                    found.append([_finite(keras.ops.convert_to_numpy(leaf)) for leaf in answers])
            again, *alike = (all(map(_answers_alike, found[0], others)) for others in found[1:])
        except Exception as error:
            return f"{UNASKED}: {type(error).__name__}" if _has_own_calls(model) else ""
        return "" if again and all(alike) else MIXED if again else f"{UNASKED}: asked twice it answers otherwise"

    def _changing(self, model: Model) -> Iterator[str]:
        """Names of layers whose states have changed since the first step, or, where that isn't seen, may do so."""
        if self._is_unread():
            yield from (name for name, _ in _states(model))
        elif model in self._states:
            before, now = self._states[model], self._values(model)
            yield from (name for name, v in _states(model) if not _same(before.get(id(v)), now.get(id(v))))

    def _is_unread(self) -> bool:
        """Whether the states are elsewhere while the model trains: with JAX."""
        return str(self.keras.backend.backend()) == "jax"

    def _values(self, model: Model) -> Values:
        values: Values = {}
        for _, variable in () if self._is_unread() else _states(model):
            # What a strategy keeps in pieces can't be read: it may change, then.
            with contextlib.suppress(Exception):
                # A copy: with PyTorch the array would be the variable's own memory.
                values[id(variable)] = self.keras.ops.convert_to_numpy(variable).copy()
        return values


def _states(model: Model) -> Iterator[tuple[str, Any]]:
    """Names of layers and their variables that no gradient changes; batch norm is known of by itself."""
    for layer in model._flatten_layers():
        name = type(layer).__name__
        if "BatchNormalization" in name or name in _STEADY:
            continue
        for variable in getattr(layer, "_non_trainable_variables", ()):
            if not variable.path.endswith("seed_generator_state"):
                yield name, variable


def _draws(model: Model) -> bool:
    """Whether a layer of the model draws random numbers."""
    return any(variable.path.endswith("seed_generator_state") for variable in model.non_trainable_variables)


def _same(before: Any, now: Any) -> bool:
    if before is None or now is None:
        return False
    numpy = sys.modules["numpy"]
    return bool(numpy.array_equal(before, now, equal_nan=before.dtype.kind == "f"))


def _batch_of(graphs: Iterable[ConcreteFunction]) -> Any:
    """What a training step is given, itself or by an iterator, as TensorFlow's specifications."""
    given: Any = next(iter(graphs)).structured_input_signature[0][-1]
    return getattr(given, "element_spec", given)


def _made_up(spec: Any) -> Any:
    """``ROWS`` rows of such data: numbers above zero, whose logarithms may be taken, or zeros and ones where they are
    whole, as they may be places in a table.
    """
    numpy = sys.modules["numpy"]
    chance = numpy.random.default_rng(0)
    shape = [ROWS, *(8 if length is None else length for length in spec.shape.as_list()[1:])]
    rows = abs(chance.normal(size=shape)) if spec.dtype.is_floating else chance.integers(0, 2, shape)
    return sys.modules["tensorflow"].constant(rows, spec.dtype)


def _finite(answers: Any) -> Any:
    """Those answers. ``ArithmeticError`` where there are none, as to a logarithm of zero."""
    if not sys.modules["numpy"].isfinite(answers := answers.astype("float64")).all():
        raise ArithmeticError
    return answers


def _answers_alike(whole: Any, others: Any) -> bool:
    """Whether as many of the first answers are the same."""
    if others.ndim != whole.ndim or others.shape[1:] != whole.shape[1:]:
        return False
    apart = abs(whole[: len(others)] - others).max(initial=0.0)
    return bool(apart <= TOLERANCE * abs(whole).max(initial=0.0))


def _has_own_calls(model: Model) -> bool:
    """Whether the script itself says what the model, or a layer of it, computes."""
    layers: Iterable[Any] = model._flatten_layers()
    codes = (getattr(inspect.unwrap(type(layer).call), "__code__", None) for layer in layers)
    return any(code is None or not is_library(code.co_filename) for code in codes)
