"""The speed-up of a best.json, read back."""

from __future__ import annotations

import math

from tuner.child import shape
from tuner.model import Ratio


def read_speedup(document: object) -> Ratio | None:
    """None where there is none. Raises ``ValueError`` for what is no ratio with its interval."""
    if document is None:
        return None
    ratio = shape.read(Ratio, document, "speedup")
    if not (math.isfinite(ratio.high) and 0 <= ratio.low <= ratio.high and 0 <= ratio.ratio < math.inf):
        raise ValueError(f"speedup: {ratio.low}, {ratio.ratio} and {ratio.high} are no ratio with its interval")
    return ratio
