"""Functions of the script's that TensorFlow traced as a dataset was made, used again where it is made again.

A function reads globals, closures and arrays when it is traced, and by the time that a dataset trains they may hold
something else: the flag that is set back for the data that validate, the variable of the loop that made the datasets.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any

from ...patches import instead
from ..graphs import nodes_of
from ..types import ConcreteFunction, Dataset, WrappedFunction

CHANGED = "a function that it was made with gives something else by now"
_MODULE = "tensorflow.python.data.ops.structured_function"
_WRAPPER = "StructuredFunctionWrapper"


def made_again(dataset: Dataset, below: Collection[Dataset], make: Callable[[], Dataset]) -> tuple[Dataset, str]:
    """What ``make`` makes in place of the dataset, and why it differs in more than it should; "" where it doesn't.

    ``below``: the datasets that it was made of. Functions that are given the same kind of elements as before are those
    that were traced then. One that is given others, such as larger batches, has to be traced anew: it differs where a
    new trace for the old elements isn't the old one.
    """
    left = list(_functions(dataset, below))
    if not left:
        return make(), ""
    module = sys.modules[_MODULE]
    trace: Callable[..., WrappedFunction] = getattr(module, _WRAPPER)

    def wrapped(function: object, name: str, dataset: Dataset | None = None, *args: Any, **kwargs: Any) -> object:
        given = kwargs.get("input_structure") if dataset is None else dataset.element_spec
        for old in left:
            if old._func is function and given is not None and old._input_structure == given:
                left.remove(old)
                return old
        return trace(function, name, dataset, *args, **kwargs)

    with instead(module, _WRAPPER, wrapped):
        made = make()
    return made, CHANGED if any(_is_another(old, trace) for old in left) else ""


def _functions(dataset: Dataset, below: Collection[Dataset]) -> Iterator[WrappedFunction]:
    """Those of the dataset, and of all that is between it and what it was made of."""
    known = {id(source) for source in below}
    waiting = [dataset]
    while waiting:
        link = waiting.pop()
        if id(link) not in known:
            known.add(id(link))
            yield from (function for function in link._functions() if hasattr(function, "_func"))
            waiting.extend(link._inputs())


def _is_another(old: WrappedFunction, trace: Callable[..., WrappedFunction]) -> bool:
    """Whether the function, traced now for the same elements, comes out another way."""
    new = trace(old._func, "autotune", input_structure=old._input_structure)
    return _content(old.function) != _content(new.function) or not _reads_the_same(old.function, new.function)


def _content(function: ConcreteFunction) -> Counter[Hashable]:
    """Its operations, and the figures that are written into it; names differ from trace to trace."""
    return Counter(
        (node.op, node.attr["value"].tensor.SerializeToString() if node.op == "Const" else b"")
        for node, _ in nodes_of(function)
    )


def _reads_the_same(old: ConcreteFunction, new: ConcreteFunction) -> bool:
    """Whether both read the same tensors, variables and tables from outside."""
    before, after = old.captured_inputs, new.captured_inputs
    return len(before) == len(after) and all(map(_is_same, before, after))


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return one.dtype == other.dtype and bool((one.numpy() == other.numpy()).all())
    except Exception:
        return False  # a variable or a table, or a tensor of a graph
