"""A trial's worth: only figures that a ratio can be made of, better is above 1 whichever way the objective points."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.worlds import MEASURED

from tuner.analysis.contention import Host
from tuner.analysis.gain import BaselineTrack, against_fresh, gain, is_drawn, runs_as_written, score_of
from tuner.analysis.waterfall import waterfall
from tuner.errors import ObjectiveError
from tuner.model import (
    BASELINE,
    Config,
    Outcome,
    OutcomeKind,
    Phase,
    Ratio,
    Reference,
    Shift,
    Trial,
)
from tuner.objective import Objective

MORE = Objective("throughput", "samples/s", True, lambda measurement: measurement.rate)
LESS = Objective("latency", "s", False, lambda measurement: measurement.rate)


def _outcome(figure: float, kind: OutcomeKind = OutcomeKind.COMPLETE) -> Outcome:
    return Outcome(kind, measurement=replace(MEASURED, rate=figure))


def _trial(number: int, figure: float | None, phase: Phase = Phase.SEARCH) -> Trial:
    return Trial(number, phase, BASELINE, outcome=None if figure is None else _outcome(figure))


@pytest.mark.parametrize(
    "outcome",
    [
        None,
        Outcome(OutcomeKind.COMPLETE),
        _outcome(5.0, OutcomeKind.INFEASIBLE),
        _outcome(5.0, OutcomeKind.CRASHED),
        _outcome(0.0),
        _outcome(-1.0),
        _outcome(math.nan),
        _outcome(math.inf),
    ],
)
def test_what_can_not_be_judged_has_no_score(outcome: Outcome | None) -> None:
    assert score_of(outcome, MORE) is None


def test_a_measurement_has_the_objectives_figure() -> None:
    assert score_of(_outcome(5.0), MORE) == 5.0


def test_an_objective_that_raises_is_told_as_such() -> None:
    broken = Objective("accuracy", "of 1", True, lambda measurement: measurement.metrics["accuracy"])
    with pytest.raises(ObjectiveError, match="accuracy fails on a measurement: KeyError"):
        score_of(_outcome(5.0), broken)


def test_better_is_above_one_either_way() -> None:
    assert gain(200.0, 100.0, MORE) == 2.0 == gain(100.0, 200.0, LESS)
    assert gain(100.0, 200.0, MORE) == 0.5 == gain(200.0, 100.0, LESS)


def _anchored(*anchors: tuple[int, float | None], objective: Objective = MORE) -> BaselineTrack:
    """Trials among which the baseline was measured at these numbers, at first as the baseline itself."""
    phases = [Phase.BASELINE, *[Phase.ANCHOR] * len(anchors)]
    runs = [_trial(number, figure, phase) for (number, figure), phase in zip(anchors, phases, strict=False)]
    return BaselineTrack([*reversed(runs), _trial(5, 1e9), _trial(6, 1e9, Phase.FINALS)], objective)


@pytest.mark.parametrize(
    ("number", "reference", "drift"),
    [(0, 100.0, 1.0), (2, 110.0, 1.5), (5, 125.0, 1.5), (10, 150.0, 1.0), (16, 78.0, 5.0), (20, 30.0, 1.0),
     (99, 30.0, 1.0)],
)  # fmt: skip
def test_a_trial_is_held_against_the_baseline_of_its_moment(number: int, reference: float, drift: float) -> None:
    track = _anchored((0, 100.0), (10, 150.0), (13, None), (15, math.nan), (20, 30.0))
    assert track.reference(number) == pytest.approx(reference)
    assert track.drift(number) == pytest.approx(drift)
    assert track.gain(_trial(number, 300.0)) == pytest.approx(300.0 / reference)


def test_where_the_baseline_moved_is_told() -> None:
    track = _anchored((0, 100.0), (10, 150.0), (13, None), (15, 140.0), (20, 70.0), (25, 76.0))
    assert track.shifts(1.1) == [Shift(0, 10, 1.5), Shift(15, 20, 2.0)]
    assert track.shifts(2.5) == []
    assert _anchored((0, 100.0)).shifts(1.0) == []


def test_without_a_baseline_there_is_no_gain() -> None:
    for track in (_anchored(), _anchored((0, None)), _anchored((0, math.inf))):
        assert track.reference(3) is None
        assert track.gain(_trial(3, 5.0)) is None
        assert track.drift(3) == 1.0
        assert track.best_of([_trial(3, 5.0)]) is None
    assert _anchored((0, 5.0)).gain(None) is None
    assert _anchored((0, 5.0)).gain(_trial(3, None)) is None


@pytest.mark.parametrize(
    ("figures", "more", "less"),
    [
        ([], None, None),
        ([None, math.nan], None, None),
        ([3.0], 0, 0),
        ([None, 3.0, 7.0, 1.0, math.inf], 2, 3),
        ([3.0, 7.0, 7.0, 3.0], 1, 0),
    ],
)
def test_the_best_is_the_first_of_equals(figures: list[float | None], more: int | None, less: int | None) -> None:
    trials = [_trial(number, figure) for number, figure in enumerate(figures)]
    best = _anchored((0, 5.0)).best_of(trials)
    least = _anchored((0, 5.0), objective=LESS).best_of(iter(trials))
    assert (best.number if best else None, least.number if least else None) == (more, less)


def test_the_best_is_so_after_the_drift_is_taken_out() -> None:
    best = _anchored((0, 100.0), (10, 200.0)).best_of([_trial(1, 150.0), _trial(9, 220.0)])
    assert best is not None and best.number == 1


@pytest.mark.parametrize(("read", "told"), [(10.0, 9.475), (1.1, 1.0656), (0.1, 1 / 9.475)])
def test_a_rough_gain_by_turns_is_drawn_towards_1_and_a_tenfold_one_hardly(read: float, told: float) -> None:
    """Both are known to a factor of two: gains scatter by a factor of 1.6, or by what was read where that is more."""
    beside = Reference(rate=100.0, gain=Ratio(read, read / 2, 2 * read), pairs=8)
    trial = Trial(1, Phase.SEARCH, BASELINE, outcome=Outcome(
        OutcomeKind.COMPLETE, measurement=replace(MEASURED, rate=100.0 * read, reference=beside)
    ))  # fmt: skip
    track = BaselineTrack([_trial(0, 100.0, Phase.BASELINE), trial], MORE)
    assert track.gain(trial) == pytest.approx(told, rel=1e-3)


@pytest.mark.parametrize(
    ("by_anchor", "known_to", "beside_anchor", "told"),
    [(1.02, 1.01, 50.0, 2.0), (1.2, 1.01, 50.0, 1.0), (2.0, 3.0, 98.0, 2.0), (2.0, 3.0, 50.0, 1.0)],
)
@pytest.mark.parametrize("again", ["alike", "the other way", "as fast", "disturbed", "none"])
def test_a_process_that_changes_with_time_is_no_measure_for_what_took_turns_with_it(
    by_anchor: float, known_to: float, beside_anchor: float, told: float, again: str
) -> None:
    """The process of the script as written that is kept alive had come down to half of what a fresh one makes, by two
    anchors that others left alone.
    """
    beside = Reference(rate=50.0, gain=Ratio(2.0, 1.999, 2.001), pairs=8)
    outcome = Outcome(OutcomeKind.COMPLETE, measurement=replace(MEASURED, rate=100.0, reference=beside))

    def anchor(number: int, ratio: float, rate: float, foreign_cpus: float = 0.0) -> Trial:
        fresh = Reference(rate=rate, gain=Ratio(ratio, ratio / known_to, ratio * known_to), pairs=8)
        measurement = replace(MEASURED, rate=100.0, reference=fresh, foreign_cpus=foreign_cpus)
        return Trial(number, Phase.ANCHOR, BASELINE, outcome=Outcome(OutcomeKind.COMPLETE, measurement=measurement))

    others = {
        "alike": [anchor(3, by_anchor, beside_anchor)], "as fast": [anchor(3, 1.0, 100.0)], "none": [],
        "the other way": [anchor(3, 1 / by_anchor, 200.0)], "disturbed": [anchor(3, by_anchor, beside_anchor, 6.0)],
    }  # fmt: skip
    trials = [
        _trial(0, 100.0, Phase.BASELINE), Trial(1, Phase.SEARCH, BASELINE, outcome=outcome),
        anchor(2, by_anchor, beside_anchor), *others[again], Trial(4, Phase.FINALS, BASELINE, outcome=outcome),
    ]  # fmt: skip
    held = against_fresh(trials, Host(8, 0.1))
    track = BaselineTrack(held, MORE)
    assert track.gain(held[1]) == pytest.approx(told if again == "alike" else 2.0, rel=0.01)
    assert track.gain(trials[-1]) == pytest.approx(2.0, rel=0.01), "finals took turns with fresh ones"


@pytest.mark.parametrize(
    ("interval", "phase", "drawn"),
    [
        (Ratio(1.19, 1.17, 1.21), Phase.SEARCH, False),
        (Ratio(1.19, 0.6, 2.3), Phase.SEARCH, True),
        (Ratio(0.25, 0.01, 6.0), Phase.SEARCH, True),
        (Ratio(0.0, 0.0, math.inf), Phase.SEARCH, True),
        (Ratio(1.19, 0.6, 2.3), Phase.PROBE, False),
        (Ratio(1.19, 0.6, 2.3), Phase.FINALS, False),
        (None, Phase.SEARCH, False),
    ],
)
def test_a_gain_that_is_not_the_quotient_of_the_rates_beside_it_is_known(
    interval: Ratio | None, phase: Phase, drawn: bool
) -> None:
    """885 samples/s beside 742 as written, and 1.08x, reads like a mistake without a word."""
    trial = _trial(1, 885.0, phase)
    assert trial.outcome is not None
    reference = Reference(885.0 / (interval.ratio or 1.0), interval, 8) if interval is not None else None
    measurement = replace(MEASURED, rate=885.0, reference=reference)
    trial = replace(trial, outcome=replace(trial.outcome, measurement=measurement))
    assert is_drawn(trial) is drawn
    if drawn and interval is not None and interval.ratio > 0:
        shown = BaselineTrack([_trial(0, 742.0, Phase.BASELINE), trial], MORE).gain(trial)
        assert shown is not None and abs(math.log(shown)) < abs(math.log(interval.ratio)) - 0.02


@pytest.mark.parametrize(
    ("foreign_cpus", "numbers"), [(0.1, [2, 5]), (6.0, [0, 2, 5]), (None, [0, 5])], ids=["calm", "alike", "failed"]
)
def test_an_anchor_takes_the_place_of_a_disturbed_run_that_it_is_calmer_than(
    foreign_cpus: float | None, numbers: list[int]
) -> None:
    def run(number: int, phase: Phase, foreign_cpus: float, group: tuple[int, ...] = ()) -> Trial:
        outcome = Outcome(OutcomeKind.COMPLETE, measurement=replace(MEASURED, foreign_cpus=foreign_cpus))
        return Trial(number, phase, BASELINE, outcome=outcome, group=group)

    again = run(2, Phase.ANCHOR, foreign_cpus or 0.0, (0,))
    if foreign_cpus is None:
        again = replace(again, outcome=Outcome(OutcomeKind.CRASHED))
    trials = [run(5, Phase.ANCHOR, 7.0), again, _trial(1, 130.0), run(0, Phase.BASELINE, 6.0)]
    assert [trial.number for trial in runs_as_written(trials)] == numbers


@pytest.mark.parametrize("rate", [50.0, 200.0])
def test_a_run_that_another_took_the_place_of_is_the_script_as_written_all_the_same(rate: float) -> None:
    """The search begins from it: 0.8 times the speed was a step ahead of a baseline that was told as 0.5 times."""
    busy = Outcome(OutcomeKind.COMPLETE, measurement=replace(MEASURED, rate=rate, foreign_cpus=6.0))
    baseline = Trial(0, Phase.BASELINE, BASELINE, outcome=busy)
    slower = replace(_trial(1, 80.0), config=Config(workers=1))
    trials = [baseline, slower, replace(_trial(2, 100.0, Phase.ANCHOR), group=(0,))]
    track = BaselineTrack(trials, MORE)
    assert [track.gain(trial) for trial in trials] == pytest.approx([1.0, 0.8, 1.0])
    assert [(entry.trial, entry.total) for entry in waterfall(trials, track)] == [(0, 1.0)]
