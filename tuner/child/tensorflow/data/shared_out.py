"""The plan of a dataset that a strategy shares out to its replicas, whose iterators tell TensorFlow's model of none."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ...records import PlanLine
from ..types import Dataset
from .caches import made_of

MOST_BYTES = 64 << 20
"""Of tensors that the data are made of: to look at the plan copies them."""
_IGNORE_STATE = 1
_CALLS_AT = {"ParallelBatchDataset": -2, "MapAndBatchDataset": -2}
"""Where among its inputs an operation has its number of parallel calls; the others have it last."""
_IN_PARALLEL = ("Parallel", "MapAndBatch")


def dataset_of(iterator: object) -> Dataset | None:
    """What an iterator of a strategy iterates over; of several hosts the first one's. None for another iterator."""
    of_hosts = getattr(iterator, "_iterators", None)
    dataset: Dataset | None = getattr(of_hosts[0], "_dataset", None) if of_hosts else None
    return dataset


def read(dataset: Dataset) -> Sequence[PlanLine]:
    """The plan as TensorFlow has rewritten it, below what the strategy adds. Nothing is fetched, and no code of the
    script's runs. Raises ``ValueError`` where the data lie in the plan, and what TensorFlow raises where it has none.
    """
    if sum(map(_bytes_in, made_of(dataset))) > MOST_BYTES:
        raise ValueError("the data lie in the plan of a strategy's iterator, and are too large to be copied")
    operations: Any = sys.modules["tensorflow.python.ops.gen_dataset_ops"]
    made: Any = dataset
    final = operations.finalize_dataset(made._variant_tensor, **made._flat_structure)
    graph = operations.dataset_to_graph_v2(final, external_state_policy=_IGNORE_STATE, strip_device_assignment=True)
    tensorflow: ModuleType = sys.modules["tensorflow.core.framework.graph_pb2"]
    nodes = {node.name: node for node in tensorflow.GraphDef.FromString(graph.numpy()).node}
    return _Reader(nodes).plan()


class _Reader:
    """Reads the nodes of a graph."""

    def __init__(self, nodes: dict[str, Any]) -> None:
        self._nodes = nodes
        self._threads = len(os.sched_getaffinity(0))
        self._plan: list[PlanLine] = []

    def plan(self) -> Sequence[PlanLine]:
        """A line for each dataset, from the last one down."""
        last = next(node for node in self._nodes.values() if node.op == "_Retval")
        for below in self._inputs(last):
            self._visit(below, 0)
        return self._plan

    def _visit(self, node: Any, depth: int) -> None:
        if node.op == "PrivateThreadPoolDataset":
            self._threads = self._number(node, -1)
        if node.op.startswith(("Rebatch", "LegacyRebatch")):
            self._plan, depth = [], 0  # what lies above is the strategy's
        else:
            turned, limit = self._turned(node)
            self._plan.append((depth, node.op.replace("Dataset", ""), turned, limit))
        for below in self._inputs(node):
            self._visit(below, depth + 1)

    def _turned(self, node: Any) -> tuple[int | str | None, int | None]:
        if node.op.startswith("Prefetch"):
            return _or_auto(self._number(node, -1)), None
        if any(word in node.op for word in _IN_PARALLEL):
            return _or_auto(self._number(node, _CALLS_AT.get(node.op, -1))), self._threads
        return None, None

    def _inputs(self, node: Any) -> list[Any]:
        below = (self._nodes.get(name.partition(":")[0]) for name in node.input if not name.startswith("^"))
        return [each for each in below if each is not None and "Dataset" in each.op]

    def _number(self, node: Any, place: int) -> int:
        """Of one of its inputs, which is a constant."""
        given = [name.partition(":")[0] for name in node.input if not name.startswith("^")]
        return int(sys.modules["tensorflow"].make_ndarray(self._nodes[given[place]].attr["value"].tensor))


def _or_auto(number: int) -> int | str:
    return "auto" if number < 0 else number


def _bytes_in(dataset: Any) -> int:
    """Of the tensors that a dataset was made of."""
    tensors = getattr(dataset, "_tensors", None) or ()
    return sum(int(getattr(tensor, "nbytes", 0) or _bytes_of(tensor)) for tensor in tensors)


def _bytes_of(tensor: Any) -> int:
    count = tensor.shape.num_elements() if hasattr(tensor, "shape") and hasattr(tensor.shape, "num_elements") else 0
    return int(count or 0) * int(getattr(tensor.dtype, "size", 1) or 1)
