"""What a training step lost when TensorFlow traced it: what Python draws or counts in it happens in the trace only.

A step that depends on nothing but tensors comes out the same each time that it is traced.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from types import CodeType, FunctionType

from ..call_sites import codes
from ..tensorflow.graphs import nodes_of
from ..tensorflow.types import ConcreteFunction, Function
from .types import Model

_SEEN_ANYWAY = frozenset({"stop_training", "learning_rate", "lr"})
"""Keras asks for these, or holds them in variables."""
_LIBRARIES = ("builtins", "tensorflow", "keras", "torch")
DRAWS = "traced again the step comes out another way: what Python draws or decides in it stands still in the graph"


def what_froze(model: Model, step: Function) -> str:
    """Why the traced step differs from the eager one; "" where nothing shows it. Traces the step twice more."""
    example: ConcreteFunction = next(iter(step._list_all_concrete_functions()))
    args, kwargs = example.structured_input_signature
    one = step._clone(None).get_concrete_function(*args, **kwargs)
    counted = _plain_attributes(model)
    other = step._clone(None).get_concrete_function(*args, **kwargs)
    changed = sorted(name for name, value in _plain_attributes(model).items() if counted.get(name, value) != value)
    if changed:
        return f"{changed[0].rpartition('.')[2]} changes with each call of the step, and stands still in the graph"
    return DRAWS if _content(one) != _content(other) else ""


def what_is_set(model: Model, stored: Mapping[str, str]) -> str:
    """Why a graph would go on with what a callback has set anew, maybe epochs later; "" where nothing shows it.

    ``stored``: attributes that callbacks set, as ``callbacks.stored`` tells them.
    """
    read = {"trainable", *_read_by(model)} - _SEEN_ANYWAY
    name = next((name for name in stored if name in read), "")
    return f"{stored[name]} sets {name}, which the step reads, and which would stand still in a graph" if name else ""


def own_kinds(model: Model) -> list[type]:
    """The script's own classes of a model and its layers, as far as these are made."""
    return [kind for kind in _kinds(model) if kind.__module__.partition(".")[0] not in _LIBRARIES]


def _kinds(model: Model) -> dict[type, None]:
    return dict.fromkeys(cls for layer in model._flatten_layers() for cls in type(layer).__mro__)


def _read_by(model: Model) -> Iterator[str]:
    """Names that are read by code of the script's own models and layers, and by that by which Keras' layers compute."""
    own = own_kinds(model)
    for kind in _kinds(model):
        held = vars(kind)
        is_layer = kind.__module__.startswith("keras.") and ".layers." in kind.__module__
        functions = held.values() if kind in own else [held.get("call")] if is_layer else []
        for function in functions:
            if isinstance(function, FunctionType):
                yield from (name for each in codes(function.__code__) for name in _read_in(each))


def _read_in(code: CodeType) -> Iterator[str]:
    """Its names but those that it only sets."""
    named = (each for each in dis.get_instructions(code) if each.opcode in dis.hasname)
    yield from (str(each.argval) for each in named if not each.opname.startswith(("STORE_", "DELETE_")))


def _content(traced: ConcreteFunction) -> Counter[Hashable]:
    """Its operations, and the figures that are written into it; names differ from trace to trace."""
    return Counter(
        (node.op, str(node.attr["value"].tensor) if node.op == "Const" else "")
        for node, _ in nodes_of(traced)
    )


def _plain_attributes(model: Model) -> dict[str, object]:
    """What the model and its layers hold in attributes that are plain numbers or words."""
    return {
        f"{place}.{name}": value
        for place, layer in enumerate(model._flatten_layers())
        for name, value in vars(layer).items()
        if type(value) in (bool, int, float, str)
    }
