"""What is told of the data that another library gives to a loop of JAX's."""

from __future__ import annotations

from ..own_batches import bound
from ..session import Session
from ..watch import KNOBS_OF, Watch
from . import FRAMEWORK

MADE_BY_THE_LOOP = "the loop makes its batches by itself: where the script has an option for their size, bind it, as in"
READING = ("read_threads", "read_buffer", "device_prefetch")
"""What Grain alone has."""
KNOBS = {
    "DataLoader": tuple(knob for knob in KNOBS_OF[Watch.LOADER] if knob not in ("batch_size", "pin_memory", *READING)),
    "tf.data dataset": tuple(knob for knob in KNOBS_OF[Watch.TF_DATA] if knob != "batch_size"),
    "Grain loader": ("num_workers", "prefetch_factor", *READING),
}
"""What feeds a loop → its knobs."""


def observe(session: Session) -> None:
    """Facts and evidence of what feeds the steps; of the knobs of what doesn't, that."""
    facts, feeding = session.facts, session.feeds.feeding
    facts.wait_is_unseen = feeding is None
    if feeding is not None:
        facts.fed_by = feeding.name
        feeding.observe()
        if session.request.probe is not None:
            facts.framework, facts.unit = FRAMEWORK, session.request.knowledge.unit
    for name, knobs in KNOBS.items():
        for knob in knobs if feeding is None or feeding.name != name else ():
            if feeding is not None and knob in KNOBS[feeding.name]:
                continue
            reason = f"no {name} feeds the training steps"
            facts.left_out.setdefault(knob, reason)
            if knob in session.knobs.requested and session.knobs.wants(knob):
                session.knobs.inapplicable(knob, reason, sites=0)


def why_not_resized(session: Session, rows: int) -> str:
    """Why what feeds the steps can't give batches of another size; "" where it can. ``rows``: samples of a step."""
    feeding = session.feeds.feeding
    if feeding is None:
        return f"{MADE_BY_THE_LOOP} -- {bound(session)}"
    refused = session.facts.left_out.get("batch_size", "")
    if refused:
        return refused
    size = feeding.written_size()
    if size is None or size != rows:
        given = f"{rows} samples" if rows else "what nobody can count"
        return f"a step is given {given}, and the {feeding.name}'s batches hold {size}"
    return ""
