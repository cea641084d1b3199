"""Threads in which Keras computes: TensorFlow's pools, or PyTorch's; of JAX's client its own adapter tells."""

from __future__ import annotations

import sys
from typing import Any

from ..applied import Effect
from ..session import Session
from ..tensorflow import elsewhere
from ..tensorflow.graphs import threads_of
from .watches import Watches

POOLS = {"threads": "intra", "inter_op_threads": "inter"}
"""By the knobs that turn them, in TensorFlow's words."""


def seen(watches: Watches, knob: str) -> int | None:
    """How many there are by now; None where the knob turns none that compute, or another adapter's."""
    if watches.backend == "tensorflow":
        return threads_of(watches.tf, POOLS[knob])
    torch: Any = sys.modules.get("torch") if (watches.backend, knob) == ("torch", "threads") else None
    return None if torch is None else int(torch.get_num_threads())


def written(session: Session, watches: Watches) -> None:
    """The script's own numbers, or why a knob turns nothing."""
    for knob in _of_keras(watches):
        count = seen(watches, knob)
        if count is None:
            session.facts.left_out[knob] = elsewhere(watches.backend)
        else:
            session.facts.as_written[knob] = count


def report(session: Session, watches: Watches) -> None:
    """Evidence."""
    for knob in session.request.config.keys() & _of_keras(watches):
        count = seen(watches, knob)
        if count is None:
            session.knobs.inapplicable(knob, elsewhere(watches.backend), sites=0)
        else:
            session.knobs.compare(knob, count, why=f"observed {count}")


def effects(session: Session, watches: Watches) -> dict[str, Effect]:
    """Of those that the config sets, for ``autotune run``."""
    told = {}
    for knob in filter(session.knobs.wants, _of_keras(watches)):
        count = seen(watches, knob)
        why = elsewhere(watches.backend) if count is None else f"the script set {count}"
        told[knob] = Effect(int(count is not None and count == session.knobs.wanted(knob)), why)
    return told


def _of_keras(watches: Watches) -> set[str]:
    return POOLS.keys() - ({"threads"} if watches.backend == "jax" else set())
