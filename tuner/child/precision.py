"""How precisely blocks of a window tell its rate: decides when the window may end."""

from __future__ import annotations

import math

LOOKS = (12, 24, 48)
"""Blocks after which a window is looked at for being hopeless: each look more is a chance more to be wrong."""
_PARTS = 6
_T_HOPELESS = 4.773
"""The one-sided 99.75% quantile of Student's t with five degrees of freedom."""

# Two-sided 97.5% quantiles of Student's t for 1..30 degrees of freedom, from standard tables.
_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def rate_of(blocks: list[tuple[float, float]]) -> float:
    """Σsamples ÷ Σseconds."""
    return sum(amount for amount, _ in blocks) / sum(seconds for _, seconds in blocks)


def relative_half_width(blocks: list[tuple[float, float]]) -> float:
    """Relative 95% half-width of Σsamples/Σseconds, by batch means over pairs of blocks.

    Only decides when a window may end; the interval that is reported is derived from the raw blocks later. How often
    that one holds the truth although this one is looked at after every block: tests/benchmarks/window_coverage.py.
    """
    pairs = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(blocks[::2], blocks[1::2], strict=False)]
    count = len(pairs)
    if count < 3:
        return math.inf
    rate = sum(s for s, _ in pairs) / sum(t for _, t in pairs)
    mean_seconds = sum(t for _, t in pairs) / count
    if rate <= 0:
        return math.inf
    variance = sum((s - rate * t) ** 2 for s, t in pairs) / (count - 1)
    quantile = _T975[min(count - 1, 30) - 1]
    return quantile * math.sqrt(variance / count) / (rate * mean_seconds)


def stays_below(blocks: list[tuple[float, float]], bound: float) -> bool:
    """Whether the rate is sure to stay below the bound, asked after each block.

    At each of three looks the blocks are six parts, all of which are slower than the bound, and so is the upper end of
    their t interval. Of windows whose rate was at the bound itself 1% ended so; of those that were a sixth above it
    none, slow spells or not: see tests/benchmarks/hopeless.py.
    """
    if len(blocks) not in LOOKS:
        return False
    size = len(blocks) // _PARTS
    rates = [rate_of(blocks[start : start + size]) for start in range(0, len(blocks), size)]
    mean = sum(rates) / len(rates)
    variance = sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1)
    return max(rates) < bound and mean + _T_HOPELESS * math.sqrt(variance / len(rates)) < bound
