"""What is told of the compilation of loops that a script writes itself."""

from __future__ import annotations

from ..session import Session
from .functions import FunctionWatch
from .graphs import calls_python

FETCHES = "the training function fetches its batches itself"
IN_PYTHON = "the training step calls Python (tf.py_function, tf.numpy_function): XLA can't do that"
UNFED = "no tf.data dataset feeds the training steps"
BIND = "the script has an option for their size, bind it, as in -- --batch-size={batch_size}"


def unfed(functions: FunctionWatch) -> str:
    """Why no dataset that can be adapted feeds a loop of the script's own: a library's may, as that of legacy Keras."""
    fetches = any(entry.fetches for entry in functions.training)
    return FETCHES if fetches else UNFED


def why_unsized(out_of_reach: str) -> str:
    """Why batches of another size can't be made, by why the data can't be adapted: "" where nothing is against it."""
    return f"{UNFED}: where the loop makes its batches, and {BIND}" if out_of_reach == UNFED else out_of_reach


EAGER = (
    "the training step runs eagerly, one operation after the other: as a tf.function it may be several times as fast,"
    " and no knob makes it one"
)
"""Of small models Python's part is nearly all: one took 864 samples/s so, and some 20,000 as a function (two cores)."""


def observe_compilation(session: Session, functions: FunctionWatch) -> None:
    """Facts, what the script wrote and what was seen of ``jit_compile``, where a loop of the script's own trained."""
    stepping = [entry for entry in functions.training if entry.calls]
    if not stepping:
        session.facts.left_out["jit_compile"] = "the training step isn't a tf.function"
        session.facts.remark(EAGER)
    else:
        session.facts.as_written["jit_compile"] = all(entry.written_jit for entry in stepping)
        if any(entry.fetches for entry in stepping):
            session.facts.left_out["jit_compile"] = f"{FETCHES}: XLA can't do that"
            session.facts.hide_wait(FETCHES)
        elif any(calls_python(graph) for entry in stepping for graph in entry.graphs[-1:]):
            session.facts.left_out["jit_compile"] = IN_PYTHON
    if "jit_compile" in session.request.config:
        seen = functions.compilation()
        if seen is None:
            session.knobs.inapplicable("jit_compile", "the training step isn't a tf.function", sites=0)
        else:
            why = next((entry.refused for entry in stepping if entry.refused), seen.why)
            session.knobs.compare("jit_compile", seen.compiled, sites=seen.sites, changed=seen.changed, why=why)
