"""Graphs of operations, as JAX traces a function (``jaxpr``), and those that their operations call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def graphs_in(operation: Any) -> Iterator[Any]:
    """The graphs that an operation calls: the body of a loop, the branches of a condition, a compiled function."""
    for value in operation.params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            graph = getattr(each, "jaxpr", each)
            if hasattr(graph, "eqns"):
                yield graph


def operations_of(graph: Any) -> Iterator[Any]:
    """Its operations, and those of all graphs within it."""
    for operation in graph.eqns:
        yield operation
        for inner in graphs_in(operation):
            yield from operations_of(inner)
