"""What computing on the machine's processors can be given, for every framework's space."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model import Value
from tuner.space import Knob, Known

CPU = frozenset({"cpu"})


def threads(known: Known) -> Sequence[Value]:
    """Numbers of threads worth trying: one, half of the cores, all but one, all."""
    return sorted({1, max(1, known.cores // 2), max(1, known.cores - 1), known.cores})


def emulated(known: Known) -> str:
    """Why no other number format than the script's own is likely to help; "" where one may."""
    others = [name for name in known.knowledge.precisions if name != known.as_written]
    slow = set(known.knowledge.emulated_precisions)
    if not others or not slow.issuperset(others):
        return ""
    return f"this processor has no instructions for {' and '.join(others)}"


def _runs_ahead(known: Known) -> Sequence[Value]:
    """A script that waits for each computation has its reason: it may reuse arrays that are still being read."""
    return [False] if known.as_written is False else [True, False]


ASYNC_DISPATCH = Knob(
    "async_dispatch", _runs_ahead, "the script runs ahead of what a processor computes",
    devices=CPU, silent_unmet=True, value_type=bool, unmet="no client of JAX's computes in this script",
    tier_reason="The same computations in the same order: only whether the script waits for each of them.",
)  # fmt: skip
"""What JAX's client for the processor does."""
