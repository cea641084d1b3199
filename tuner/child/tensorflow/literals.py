"""Numbers of rows that are written into training steps, which another batch size wouldn't reach."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from .entries import TracedFunction
from .functions import FunctionWatch
from .graphs import divides, draws
from .types import ConcreteFunction, Function, Graph, Tensor


def literal_rows(functions: FunctionWatch, rows: int, *, retrace: bool) -> str:
    """Why another batch size wouldn't reach the whole training step; "" where nothing says so.

    A traced graph holds numbers whatever they come from; one traced at another size, with ``retrace``, shows which
    were written down.
    """
    for entry in list(functions.training):
        graphs = list(entry.graphs)
        if retrace and any(_leading(tensor) == rows for graph in graphs for tensor in graph.inputs):
            graphs = _retraced(functions, entry, rows)
        why = _why(functions.tf, graphs, rows)
        if why:
            return why
    return ""


def literal_rows_of_step(tf: ModuleType, step: Function, rows: int, *, is_own: bool) -> str:
    """As ``literal_rows``, of the step that Keras traces; it is traced once more where it knows its batch's size.

    ``is_own``: whether it is the script's. In Keras' own layers and losses may draw for each position, or mask, what
    is as long as a batch by chance; what they draw for each row fails with another batch.
    """
    example: ConcreteFunction = next(iter(step._list_all_concrete_functions()))
    args, kwargs = example.structured_input_signature
    widened = tf.nest.map_structure(lambda spec: _widened(tf, spec, rows), (args, kwargs))
    if widened == (args, kwargs):
        return _why(tf, [example.graph], rows, draw=is_own)
    try:
        wider = step._clone(None).get_concrete_function(*widened[0], **widened[1])
        return _why(tf, [wider.graph], rows, draw=is_own)
    except Exception:
        return ""  # a partial batch would fail as well; the trial will tell


def _why(tf: ModuleType, graphs: Sequence[Graph], rows: int, *, draw: bool = True) -> str:
    """``draw``: whether they may draw rows."""
    drawn = [name for graph in graphs for name in draws(tf, graph, rows)] if draw else []
    if drawn:
        return f"the training step itself draws tensors of {rows} rows ({drawn[0]})"
    divided = [name for graph in graphs for name in divides(tf, graph, rows)] if rows > 1 else []
    return f"the training step itself divides a sum by {rows}, the rows of a batch ({divided[0]})" if divided else ""


def _widened(tf: ModuleType, spec: object, rows: int) -> object:
    """With one row more, where it has so many."""
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[0] == rows:
        return tf.TensorSpec([rows + 1, *spec.shape[1:]], spec.dtype)
    return spec


def _retraced(functions: FunctionWatch, entry: TracedFunction, rows: int) -> list[Graph]:
    """The function's graph for batches of one row more; none where it can't be traced so."""
    tf = functions.tf
    function = entry.function
    if entry.example is None or function is None:
        return []
    args, kwargs = tf.nest.map_structure(lambda spec: _widened(tf, spec, rows), entry.example)
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
