"""What PyTorch's compiler counts of itself: graphs of dynamo, kernels from inductor's cache on disk."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class CompilerCounts:
    """``graphs`` that were compiled, the ``seconds`` that took, ``breaks`` between graphs."""

    graphs: int = 0
    seconds: float = 0.0
    breaks: int = 0


def counts() -> CompilerCounts:
    """Since the process began; zeros as long as nothing has imported the compiler."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return CompilerCounts()
    stats = dynamo.counters
    times = getattr(dynamo, "compilation_time_metrics", {})
    seconds = sum(times.get("_compile.compile_inner", ())) if times else 0.0
    return CompilerCounts(int(stats["stats"]["unique_graphs"]), float(seconds), sum(stats["graph_break"].values()))


def cache_counts() -> tuple[int, int]:
    """Graphs that came out of inductor's cache on disk, and graphs that had to be compiled."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    inductor = dynamo.counters["inductor"] if dynamo is not None else {}
    misses = inductor.get("fxgraph_cache_miss", 0) + inductor.get("fxgraph_cache_bypass", 0)
    return int(inductor.get("fxgraph_cache_hit", 0)), int(misses)


def why_not_compiled() -> str:
    """For people: that nothing was, and the first reason that the compiler gave."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    breaks = list(dynamo.counters["graph_break"]) if dynamo is not None else []
    lines = str(breaks[0]).strip().splitlines() if breaks else []
    return f"nothing was compiled: {lines[0]}" if lines else "nothing was compiled"
