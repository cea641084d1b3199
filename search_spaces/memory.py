"""What every framework's space says of the host's memory: which library gives it."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model import Value
from tuner.space import Knob, Known


def allocators(known: Known) -> Sequence[Value]:
    """Those that are installed. What the user preloads himself can't be taken back by preloading something else."""
    return list(known.knowledge.allocators)


def allocator_refuses(known: Known) -> str:
    """Why there is nothing to choose, or ""."""
    if known.knowledge.allocators:
        return ""
    return "neither jemalloc, tcmalloc nor mimalloc is installed (Debian: libjemalloc2, libtcmalloc-minimal4)"


ALLOCATOR = Knob(
    "allocator", allocators, "library that gives the process its memory",
    devices=frozenset({"cpu"}), refuses=allocator_refuses, value_type=str,
    tier_reason="It decides where in memory numbers lie, and not what is computed with them.",
)  # fmt: skip
