"""What a training step lost when TensorFlow traced it: what Python draws or counts in it happens in the trace only.

A step that depends on nothing but tensors comes out the same each time that it is traced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from ..tensorflow.graphs import nodes_of
from ..tensorflow.types import ConcreteFunction, Function
from .types import Model

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
