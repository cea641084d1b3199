"""TensorFlow's traced graphs, read: what is multiplied in which precision, updated, drawn and divided."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

from .. import thread_names
from .types import ConcreteFunction, Graph, NodeDef

OUR_SCOPE = "autotune_counters"
"""Name scope of the operations and variables that are added to the script's graphs."""
PRODUCTS = frozenset(
    [
        "MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv", "Conv2D", "Conv3D",
        "Conv2DBackpropInput", "Conv2DBackpropFilter", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2",
        "DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter",
        "_FusedMatMul", "_FusedConv2D", "CudnnRNNV3", "CudnnRNNBackpropV3",
    ]
)  # fmt: skip
_DRAWS = ("Random", "StatelessRandom", "TruncatedNormal", "StatelessTruncatedNormal", "ParameterizedTruncated")
_DIVISIONS = ("RealDiv", "DivNoNan")
_HELD = frozenset(["ReadVariableOp", "Const"])
_UPDATES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter")
_CALLS = ("StatefulPartitionedCall",)
_PYTHON = frozenset(["PyFunc", "PyFuncStateless", "EagerPyFunc"])
_XLA_THREADS = "tf_XLA"
Traced = Graph | ConcreteFunction


def nodes_of(traced: Traced, *, first_values: bool = True) -> Iterator[tuple[NodeDef, dict[str, NodeDef]]]:
    """Every node that a graph can run, those of the functions that it calls included, with its neighbours by name.

    A function that is called from several places is read once. Without ``first_values`` none that only gives variables
    their first values.
    """
    graph: Graph = getattr(traced, "graph", None) or cast(Graph, traced)
    definition = graph.as_graph_def()
    library = {function.signature.name: function.node_def for function in definition.library.function}
    left = frozenset[str]() if first_values else _of_first_values(definition.node)
    waiting: list[Sequence[NodeDef]] = [[node for node in definition.node if node.name not in left]]
    seen: set[str] = set()
    while waiting:
        nodes = waiting.pop()
        neighbours = {node.name: node for node in nodes}
        for node in nodes:
            yield node, neighbours
            for name in (node.op, *_called(node)):
                if name in library and name not in seen:
                    seen.add(name)
                    waiting.append(library[name])


def _of_first_values(nodes: Sequence[NodeDef]) -> frozenset[str]:
    """Names of those that a first trace, which makes variables, has for their first values alone.

    These are assigned in branches, by whether the variable has a value; a second trace has none of it.
    """
    ops = {node.name: node.op for node in nodes}
    takers: dict[str, set[str]] = {}
    for node in nodes:
        for name in node.input:
            takers.setdefault(_name_of(name), set()).add(node.name)
    left = {n.name for n in nodes if n.op == "If" and ops.get(_name_of(n.input[0])) == "VarIsInitializedOp"}
    for node in reversed(nodes):  # each stands behind those that it takes something from
        if takers.get(node.name) and takers[node.name] <= left:
            left.add(node.name)
    return frozenset(left)


def _name_of(given: str) -> str:
    return given.removeprefix("^").split(":")[0]


def _called(node: NodeDef) -> Iterator[str]:
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        elif value.HasField("list"):
            yield from (function.name for function in value.list.func)


def products(tf: ModuleType, graph: Traced) -> Counter[str]:
    """How many products (matrix, convolution, einsum) are computed in each dtype."""
    return products_among(tf, (node for node, _ in nodes_of(graph)))


def products_among(tf: ModuleType, nodes: Iterable[NodeDef]) -> Counter[str]:
    """As ``products``, of any nodes."""
    return Counter(tf.as_dtype(_type_of(node)).name for node in nodes if node.op in PRODUCTS)


def _type_of(node: NodeDef) -> int:
    """TensorFlow's number of the format of what is multiplied; a product that gives another format has two of them."""
    names = ("T", "Ta", "Tb")
    return next((node.attr[name].type for name in names if name in node.attr), 0)


def trainable_updated(graph: Graph) -> bool | None:
    """Whether running the graph changes a variable that can be trained; None where what it changes can't be told."""
    definition = graph.as_graph_def()
    library = {function.signature.name: function for function in definition.library.function}
    # A first trace that makes variables gives them their first values, in branches; there is a second one without that.
    makes = any(node.op == "VarIsInitializedOp" for node in definition.node)
    updated = _updated([node for node in definition.node if not (makes and node.op == "If")], library, {})
    try:
        trainable = {id(variable.handle): bool(variable.trainable) for variable in graph.variables}
    except Exception:  # those of replicas, or gone
        trainable = {}
    outer = {inner.name.split(":")[0]: trainable.get(id(value)) for value, inner in graph.captures}
    found = {outer.get(name) for name in updated}
    return True if True in found else None if None in found else False


def _updated(nodes: Iterable[NodeDef], library: Mapping[str, Any], done: dict[str, set[int]]) -> set[str]:
    """Names of the handles whose variables these nodes change, those of the functions that they call included.

    ``done``: of each function that was read, which of its arguments, counted from the last one: behind those that a
    loop or a branch has for itself come the same ones as in its node.
    """
    names = set()
    for node in nodes:
        inputs = [name.split(":")[0] for name in node.input if not name.startswith("^")]
        if node.op.startswith(_UPDATES) and OUR_SCOPE not in node.name:
            names.add(inputs[0])
        for called in {node.op, *_called(node)} & set(library):
            if called not in done:
                done[called] = set()
                arguments = [argument.name for argument in library[called].signature.input_arg]
                within = _updated(library[called].node_def, library, done)
                done[called] = {len(arguments) - i for i, name in enumerate(arguments) if name in within}
            names |= {inputs[-place] for place in done[called] if place <= len(inputs)}
    return names


def calls_python(graph: Traced) -> bool:
    """Whether running the graph calls functions of Python's, as of ``tf.py_function``, which XLA can't compile."""
    return any(node.op in _PYTHON for node, _ in nodes_of(graph))


def draws_numbers(graph: Traced) -> bool:
    """Whether running the graph draws random numbers, other than first values of variables that it makes."""
    return any(node.op.startswith((*_DRAWS, "Stateful", "Multinomial", "Rng")) and node.op not in _CALLS
               for node, _ in nodes_of(graph, first_values=False))  # fmt: skip


def draws(tf: ModuleType, graph: Traced, rows: int) -> list[str]:
    """Names of random and fill operations whose number of rows is written into the graph and equals ``rows``."""
    names = []
    for node, neighbours in nodes_of(graph):
        if node.op.startswith(_DRAWS) or node.op == "Fill":
            position = 0
        elif node.op.startswith("Stateful"):
            position = 2  # after the generator's state and its algorithm
        else:
            continue
        source = neighbours.get(node.input[position].split(":")[0]) if len(node.input) > position else None
        if source is None or source.op != "Const":
            continue
        shape = tf.make_ndarray(source.attr["value"].tensor)
        # A filled vector of as many elements is as often one an output as one a sample; a square is a mask.
        is_rows = shape.ndim == 1 and shape.size > 0 and int(shape[0]) == rows
        if is_rows and (node.op != "Fill" or bool((shape != rows).any())):
            names.append(node.name)
    return names


def divides(tf: ModuleType, graph: Traced, rows: int) -> list[str]:
    """Names of operations that divide the sum of a vector by ``rows``, where that number is written into the graph.

    Not of what is computed from variables alone, as a penalty on biases is: those are no samples.
    """
    names = []
    for node, neighbours in nodes_of(graph):
        if node.op not in (*_DIVISIONS, "Mul"):
            continue
        given = [_source(name, neighbours) for name in node.input[:2]]
        pairs, number = ([given], rows) if node.op in _DIVISIONS else ([given, given[::-1]], 1 / rows)
        if any(_sums_vector(tf, summed, neighbours) and _is_number(tf, by, number) for summed, by in pairs):
            names.append(node.name)
    return names


def _source(name: str, neighbours: Mapping[str, NodeDef]) -> NodeDef | None:
    """The node that an input comes from, past those that only hand on or convert."""
    node = neighbours.get(name.partition(":")[0])
    while node is not None and node.op in ("Identity", "Cast") and node.input:
        node = neighbours.get(node.input[0].partition(":")[0])
    return node


def _unscaled(node: NodeDef | None, neighbours: Mapping[str, NodeDef]) -> NodeDef | None:
    """What a node negates, or multiplies by a number that is written into the graph."""
    while node is not None and node.op in ("Neg", "Mul"):
        given = [_source(name, neighbours) for name in node.input[: 1 + (node.op == "Mul")]]
        others = [each for each in given if each is None or each.op != "Const"]
        if len(others) != 1:
            return node
        node = others[0]
    return node


def _sums_vector(tf: ModuleType, node: NodeDef | None, neighbours: Mapping[str, NodeDef]) -> bool:
    node = _unscaled(node, neighbours)
    axes = _source(node.input[1], neighbours) if node is not None and node.op == "Sum" else None
    if node is None or axes is None or axes.op != "Const":
        return False
    return tf.make_ndarray(axes.attr["value"].tensor).tolist() == [0] and _depends_on_data(node.input[0], neighbours)


def _depends_on_data(name: str, neighbours: Mapping[str, NodeDef]) -> bool:
    """Whether a tensor is computed from more than variables and what is written into the graph."""
    waiting, seen = [name], set[str]()
    while waiting:
        name = waiting.pop().partition(":")[0]
        node = neighbours.get(name)  # what a function is given has no node in it
        if name in seen or name.startswith("^") or (node is not None and node.op in _HELD):
            continue
        if node is None or not node.input:
            return True
        seen.add(name)
        waiting += node.input
    return False


def _is_number(tf: ModuleType, node: NodeDef | None, number: float) -> bool:
    if node is None or node.op != "Const":
        return False
    value = tf.make_ndarray(node.attr["value"].tensor)
    return value.ndim == 0 and value.dtype.kind in "fi" and math.isclose(value, number, rel_tol=1e-6)


def is_compiled(concrete: ConcreteFunction) -> bool:
    """Whether the runtime must compile this traced function, or raise where it can't."""
    return bool(concrete.function_def.attr["_XlaMustCompile"].b)


def threads_of(tf: ModuleType | None, pool: str) -> int:
    """Threads of TensorFlow's pool "intra" or "inter"; it takes all cores where it says 0, or isn't there yet."""
    threading = tf.config.threading if tf is not None else None
    threads: int = getattr(threading, f"get_{pool}_op_parallelism_threads")() if threading is not None else 0
    return threads or len(os.sched_getaffinity(0))


def xla_threads() -> int:
    """Threads of this process that belong to XLA's CPU runtime; 0 where nothing compiled ever ran, or can't be seen."""
    return thread_names.count_of(_XLA_THREADS)
