"""What a training step lost when TensorFlow traced it: what Python draws or counts in it happens in the trace only.

A step that depends on nothing but tensors comes out the same each time that it is traced.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType

from ..call_sites import codes, is_library
from ..tensorflow.graphs import nodes_of
from ..tensorflow.types import ConcreteFunction, Function
from ..torch.reached import around
from .reductions import losses_of
from .types import Model

_SEEN_ANYWAY = frozenset({"stop_training", "learning_rate", "lr"})
"""Keras asks for these, or holds them in variables."""
_LIBRARIES = ("builtins", "tensorflow", "keras", "torch")
_NAMED = frozenset({*dis.hasname, *dis.hasfree})
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
    """Names that are read by the script's own models, layers, losses and optimizer, and by what of its code these name;
    by that by which Keras' layers compute; and what an optimizer holds in plain figures.
    """
    layers = (kind for kind in _kinds(model) if kind.__module__.startswith("keras.") and ".layers." in kind.__module__)
    for computes in (vars(kind).get("call") for kind in layers):
        yield from _read_in(computes.__code__) if isinstance(computes, FunctionType) else ()
    optimizer = getattr(model, "optimizer", None)
    yield from (name for name, value in getattr(optimizer, "__dict__", {}).items() if value is None or _is_plain(value))
    waiting: list[object] = [*losses_of(model), optimizer]
    waiting += [member for kind in own_kinds(model) for member in vars(kind).values()]
    seen = set[CodeType]()
    while waiting:
        for function in _functions_of(waiting.pop()):
            if function.__code__ not in seen and not is_library(function.__code__.co_filename):
                seen.add(function.__code__)
                named = list(_read_in(function.__code__))
                yield from named
                waiting += [function.__globals__[name] for name in named if name in function.__globals__]
                waiting += around(function)


def _functions_of(value: object) -> Iterator[FunctionType]:
    """What it is, or wraps, or has in its class."""
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif hasattr(type(value), "python_function"):  # as tf.function has made it
        value = getattr(value, "python_function", None)
    if isinstance(value, FunctionType):
        yield value
    else:
        members = (member for kind in type(value).__mro__ for member in vars(kind).values())
        yield from (member for member in members if isinstance(member, FunctionType))


def _read_in(code: CodeType) -> Iterator[str]:
    """The names in it, and in the functions that it makes, but those that it only sets."""
    named = (each for inner in codes(code) for each in dis.get_instructions(inner) if each.opcode in _NAMED)
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
        if _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    return type(value) in (bool, int, float, str)
