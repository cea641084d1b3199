"""The speed-up of a best.json, and what took no part in it, read back."""

from __future__ import annotations

import math

from tuner.child import shape
from tuner.model import Evidence, Ratio


def read_speedup(document: object) -> Ratio | None:
    """None where there is none. Raises ``ValueError`` for what is no ratio with its interval."""
    if document is None:
        return None
    ratio = shape.read(Ratio, document, "speedup")
    if not (math.isfinite(ratio.high) and 0 <= ratio.low <= ratio.high and 0 <= ratio.ratio < math.inf):
        raise ValueError(f"speedup: {ratio.low}, {ratio.ratio} and {ratio.high} are no ratio with its interval")
    return ratio


def knobs_in_vain(document: object) -> frozenset[str]:
    """The knobs of which a profile's ``knobs`` say that they met nothing to turn; whatever else stands there isn't one:
    no config is applied by it.
    """
    reports = [report for report in document if isinstance(report, dict)] if isinstance(document, list) else []
    return frozenset(str(r.get("knob")) for r in reports if r.get("evidence") == str(Evidence.NOT_APPLICABLE))
