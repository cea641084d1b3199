"""What is read of a trial's records in tests of rates."""

from __future__ import annotations

from typing import Any

from support.entries import entries_of
from tuner.analysis.measurement import measurement_of
from tuner.model import Measurement


def measured(ran: Any) -> Measurement:
    """The figures that the parent derives."""
    found = measurement_of(entries_of([{"v": 1, **record} for record in ran.records]), [])
    assert found is not None, ran.output
    return found


def naive(ran: Any) -> float:
    """The samples of the window by its seconds."""
    window = [b for b in ran.of("block") if b["phase"] == "window" and not b["flagged"]]
    return float(sum(b["samples"] for b in window) / sum(b["seconds"] for b in window))
