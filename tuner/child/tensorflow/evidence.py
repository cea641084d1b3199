"""What is told of the compilation of loops that a script writes itself."""

from __future__ import annotations

from ..session import Session
from .functions import FunctionWatch


def observe_compilation(session: Session, functions: FunctionWatch) -> None:
    """Facts, what the script wrote and what was seen of ``jit_compile``, where a loop of the script's own trained."""
    stepping = [entry for entry in functions.training if entry.calls]
    if not stepping:
        session.facts.left_out["jit_compile"] = "the training step isn't a tf.function"
    else:
        session.facts.as_written["jit_compile"] = all(entry.written_jit for entry in stepping)
        if any(entry.fetches for entry in stepping):
            fetches = "the training function fetches its batches itself"
            session.facts.left_out["jit_compile"] = f"{fetches}: XLA can't do that"
            session.facts.hide_wait(fetches)
    if "jit_compile" in session.request.config:
        seen = functions.compilation()
        if seen is None:
            session.knobs.inapplicable("jit_compile", "the training step isn't a tf.function", sites=0)
        else:
            why = next((entry.refused for entry in stepping if entry.refused), seen.why)
            session.knobs.compare("jit_compile", seen.compiled, sites=seen.sites, changed=seen.changed, why=why)
