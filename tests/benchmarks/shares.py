"""Shares with their intervals, as the benchmarks print them."""

from __future__ import annotations

import math


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95% interval of a share (Wilson, JASA 22, 1927); everything is possible where nothing was counted."""
    if not count:
        return 0.0, 1.0
    z, share = 1.96, hits / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, centre - half), centre + half


def share_text(hits: int, count: int) -> str:
    """The share as a line of a report."""
    low, high = wilson(hits, count)
    share = f"{hits / count:.2%}" if count else "-"
    return f"{hits} of {count} ({share}, 95% [{low:.2%}, {high:.2%}])"
