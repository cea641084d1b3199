"""Figures of a trial that took turns with the script as written: what counts on one side counts on the other."""

from __future__ import annotations

from typing import Any

import pytest
from support.entries import entries_of

from tuner.analysis.gain import BaselineTrack
from tuner.analysis.measurement import Beside, measurement_of
from tuner.analysis.resources import READING_S, ResourceSample, lost_share
from tuner.model import BASELINE, Config, Measurement, Outcome, OutcomeKind, Phase, Trial
from tuner.objective import RATE

Record = dict[str, Any]
DONE: Record = {"kind": "window", "t": 99.0, "complete": True, "why": ""}


def turns(first: int, rate: float, *, count: int = 12, validates: bool = False, **fields: Any) -> list[Record]:
    """Every second turn from that number on: a quarter of a second each, behind some validation where it validates."""
    records = []
    for number in range(first, first + 2 * count, 2):
        at = 10.0 + number
        common = {"phase": "window", "turn": number, "wait_s": 0.0, **fields}
        if validates:
            records.append({"kind": "block", "t": at, "steps": 0, "samples": 0.0, "seconds": 0.3, "flagged": True,
                            **common})  # fmt: skip
        records.append({"kind": "block", "t": at + 0.3, "steps": 5, "samples": rate / 4, "seconds": 0.25,
                        "flagged": False, **common})  # fmt: skip
    return records


def beside(own: list[Record], theirs: list[Record]) -> Measurement:
    found = measurement_of(entries_of([*own, DONE]), [], Beside(entries_of(theirs)))
    assert found is not None
    return found


def test_the_gain_is_that_of_the_turns() -> None:
    found = beside(turns(1, 300.0), turns(2, 200.0))
    assert found.reference is not None and found.turns == 12
    assert found.reference.gain.ratio == pytest.approx(1.5)
    assert found.reference.rate == pytest.approx(200.0) and found.reference.pairs == 12
    assert found.reference.own_share == pytest.approx(0.5)


@pytest.mark.parametrize(("own", "theirs"), [(True, False), (False, True), (True, True)])
def test_validation_counts_for_both_sides_or_for_none(own: bool, theirs: bool) -> None:
    """Short epochs: one side's blocks are half validation, the other's epochs have become longer."""
    found = beside(turns(1, 300.0, validates=own), turns(2, 200.0, validates=theirs))
    assert found.reference is not None and found.reference.gain.ratio == pytest.approx(1.5)


def readings(busy: float, first: int, *, others: float) -> list[ResourceSample]:
    """Around every second turn from that number on, of one of two cores, of which others had so many then."""
    found, cpu_s, busy_s = list[ResourceSample](), 0.0, 0.0
    for number in range(first, first + 24, 2):
        found.append(ResourceSample(10.0 + number, cpu_s=cpu_s, busy_s=busy_s, cores=2))
        cpu_s, busy_s = cpu_s + 0.35 * busy, busy_s + 0.35 * (busy + others) + READING_S
        found.append(ResourceSample(10.0 + number + 0.35, cpu_s=cpu_s, busy_s=busy_s, cores=2))
    return found


@pytest.mark.parametrize(("own", "theirs"), [(0.0, 1.0), (1.0, 0.0), (0.8, 0.4), (0.1, 0.1)])
def test_what_others_had_is_told_of_the_turns_of_both_sides(own: float, theirs: float) -> None:
    found = measurement_of(
        entries_of([*turns(1, 300.0), DONE]), readings(1.0, 1, others=own),
        Beside(entries_of(turns(2, 200.0)), readings(1.0, 2, others=theirs)),
    )  # fmt: skip
    assert found is not None and found.reference is not None
    assert found.foreign_cpus == pytest.approx(own, abs=0.01)
    assert found.reference.foreign_cpus == pytest.approx(theirs, abs=0.01)


def test_where_one_side_is_nothing_but_validation_all_of_both_counts() -> None:
    flagged = [{**record, "flagged": True} for record in turns(1, 300.0)]
    found = beside(flagged, turns(2, 200.0))
    assert found.reference is not None and found.reference.gain.ratio == pytest.approx(1.5)


def test_another_unit_is_no_reference() -> None:
    assert beside(turns(1, 300.0), turns(2, 0.0)).reference is None


def test_a_turn_in_which_the_trial_itself_waits_is_not_disturbed_for_that() -> None:
    """A background of 0.08 of 2 cores, 0.02 of it for readings, and a trial that computes for a tenth of the turn."""
    before = ResourceSample(10.0, cores=2)
    after = ResourceSample(11.0, cpu_s=0.1, busy_s=0.18, cores=2)
    assert lost_share([before, after], 10.1, 10.9) == pytest.approx(0.03)
    stolen = ResourceSample(11.0, cpu_s=1.0, busy_s=2.0, cores=2)
    assert lost_share([before, stolen], 10.1, 10.9) == pytest.approx(0.49)
    assert lost_share([], 10.1, 10.9) == 0.0


def trial(number: int, phase: Phase, found: Measurement) -> Trial:
    config = BASELINE if phase is Phase.BASELINE else Config(threads=1)
    return Trial(number, phase, config, outcome=Outcome(OutcomeKind.COMPLETE, measurement=found))


def test_a_gain_by_turns_needs_no_anchor_and_counts_for_what_is_known_of_it() -> None:
    """The machine is twice as fast as when the script as written was measured by itself."""
    alone = measurement_of(entries_of([*turns(1, 100.0, turn=0), DONE]), [])
    assert alone is not None
    sharp = beside(turns(1, 300.0), turns(2, 200.0))
    rough = beside([*turns(1, 900.0, count=2), *turns(5, 100.0, count=2)], turns(2, 200.0, count=4))
    track = BaselineTrack([trial(0, Phase.BASELINE, alone)], RATE)
    assert track.gain(trial(1, Phase.SEARCH, sharp)) == pytest.approx(1.5, rel=1e-3)
    assert rough.reference is not None and rough.reference.gain.ratio == pytest.approx(2.5)
    known = track.gain(trial(2, Phase.SEARCH, rough))
    assert known is not None and 1.0 < known < 1.4
