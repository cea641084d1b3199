"""The raw slices of a trial: what was measured follows from them, and from them alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.entries import entries_of

from tuner.analysis.measurement import Beside, Slices, measurement_of, slices_of
from tuner.analysis.resources import ResourceSample
from tuner.analysis.turns import calm_pairs, gain_interval, neighbouring_pairs, pairs_of_turns, together
from tuner.model import Measurement

Record = dict[str, Any]
DONE: Record = {"kind": "window", "t": 99.0, "complete": True, "why": ""}
WARMUP = [
    {"kind": "block", "t": 3.0 + place, "phase": "warmup", "steps": 5, "samples": 40.0, "seconds": 0.5, "wait_s": 0.0}
    for place in range(3)
]


def turns(first: int, rates: list[float], **fields: Any) -> list[Record]:
    """Every second turn from that number on, a quarter of a second each."""
    return [
        {"kind": "block", "t": 10.3 + number, "phase": "window", "turn": number, "wait_s": 0.0, "steps": 5,
         "samples": rate / 4, "seconds": 0.25, "flagged": False, **fields}
        for number, rate in zip(range(first, 99, 2), rates, strict=False)
    ]  # fmt: skip


def found(
    own: list[Record], theirs: list[Record], samples: list[ResourceSample] | None = None
) -> tuple[Measurement, Slices]:
    entries, beside = entries_of([*WARMUP, *own, DONE]), Beside(entries_of(theirs), samples or [])
    measurement, slices = measurement_of(entries, samples or [], beside), slices_of(entries, samples or [], beside)
    assert measurement is not None and slices is not None
    return measurement, slices


RATES = [300.0, 310.0, 290.0, 305.0, 280.0, 320.0, 300.0]


@pytest.mark.parametrize("fields", [{}, {"tokens": 1000.0}, {"starts": 1, "start_s": 0.01}])
def test_the_gain_and_the_rate_follow_from_the_slices(fields: Record) -> None:
    measurement, slices = found(turns(1, RATES, **fields), turns(2, RATES[::-1], **fields))
    gain = gain_interval(calm_pairs(slices.pairs))
    assert gain is not None and measurement.reference is not None and len(slices.pairs) == len(RATES)
    assert math.exp(gain.estimate) == pytest.approx(measurement.reference.gain.ratio)
    assert math.exp(gain.low) == pytest.approx(measurement.reference.gain.low)
    own = together([own for own, _ in slices.pairs])
    assert own.amount / own.seconds == pytest.approx(measurement.rate)
    assert slices.warmup_s == 1.5 and slices.blocks == ()


def test_disturbed_pairs_are_among_them() -> None:
    """Others had all of two cores in the third pair."""
    busy = [ResourceSample(at, busy_s=2.0 * max(0.0, min(at, 17.0) - 15.0), cores=2) for at in range(30)]
    measurement, slices = found(turns(1, RATES), turns(2, RATES), busy)
    assert measurement.reference is not None and measurement.reference.pairs == len(RATES) - 1
    assert len(slices.pairs) == len(RATES) and len(calm_pairs(slices.pairs)) == len(RATES) - 1
    assert max(own.lost for own, _ in slices.pairs) > 0.5


def test_without_turns_there_are_the_blocks() -> None:
    measurement, slices = found([{**record, "turn": 0} for record in turns(1, RATES)], [])
    assert slices.pairs == () and len(slices.blocks) == len(RATES)
    whole = together(slices.blocks)
    assert whole.amount / whole.seconds == pytest.approx(measurement.rate)


def test_what_gives_no_figure_has_none() -> None:
    assert slices_of(entries_of([*turns(1, RATES[:2]), DONE]), []) is None
    assert slices_of([], []) is None


def test_pairs_of_turns_are_the_calm_ones_of_the_neighbouring() -> None:
    _, slices = found(turns(1, RATES), turns(2, RATES[::-1]))
    own, other = [own for own, _ in slices.pairs], [other for _, other in slices.pairs]
    assert pairs_of_turns(own, other) == calm_pairs(neighbouring_pairs(own, other))
