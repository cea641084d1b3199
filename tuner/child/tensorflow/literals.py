"""Numbers of rows that are written into training steps, which another batch size wouldn't reach."""

from __future__ import annotations

from .entries import TracedFunction
from .functions import FunctionWatch
from .graphs import draws
from .types import Graph, Tensor


def literal_rows(functions: FunctionWatch, rows: int, *, retrace: bool) -> str:
    """Why another batch size wouldn't reach the whole training step; "" where nothing says so.

    A traced graph holds numbers whatever they come from; one traced at another size, with ``retrace``, shows which
    were written down.
    """
    for entry in list(functions.training):
        graphs = list(entry.graphs)
        if retrace and any(_leading(tensor) == rows for graph in graphs for tensor in graph.inputs):
            graphs = _retraced(functions, entry, rows)
        names = [name for graph in graphs for name in draws(functions.tf, graph, rows)]
        if names:
            return f"the training step itself draws tensors of {rows} rows ({names[0]})"
    return ""


def _retraced(functions: FunctionWatch, entry: TracedFunction, rows: int) -> list[Graph]:
    """The function's graph for batches of one row more; none where it can't be traced so."""
    tf = functions.tf

    def widen(spec: object) -> object:
        if isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[0] == rows:
            return tf.TensorSpec([rows + 1, *spec.shape[1:]], spec.dtype)
        return spec

    function = entry.function
    if entry.example is None or function is None:
        return []
    args, kwargs = tf.nest.map_structure(widen, entry.example)
    functions.is_retracing = True
    try:
        return [function._clone(None).get_concrete_function(*args, **kwargs).graph]
    except Exception:
        return []  # a partial batch would fail as well; the trial will tell
    finally:
        functions.is_retracing = False


def _leading(tensor: Tensor) -> int | None:
    shape = tensor.shape
    return shape[0] if shape.rank else None
