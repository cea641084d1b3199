"""What holds of screens for any losses: nothing passes that doesn't learn, nor where nothing can be told."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import worlds

from tuner.analysis.accuracy import AccuracyLimits, judge
from tuner.analysis.checks import Pair
from tuner.analysis.learning import Curve, Descent, curves_of, descent_of, sample_efficiencies
from tuner.analysis.stats import Noninferiority
from tuner.model import BASELINE, Outcome

FEWER = settings(max_examples=60)  # each judges three pairs of runs
SEEDS = st.integers(0, 2**32)
PASS, FAIL = Noninferiority.PASS, Noninferiority.FAIL
Loss = Callable[[float, random.Random], float]


def learned(loss: Loss, seed: int) -> Outcome:
    """A run of 120 steps; ``loss`` is told how much of it is over."""
    outcome, chance = worlds.measured(1.0), random.Random(seed)
    assert outcome.measurement is not None
    series = worlds.series(loss(step / 120, chance) for step in range(120))
    return replace(outcome, measurement=replace(outcome.measurement, losses=(series,)))


def three(before: Loss, after: Loss, seed: int) -> list[Pair]:
    return [Pair(n, learned(before, seed + n), learned(after, seed + n)) for n in (1, 2, 3)]


def falling(start: float, way: float, pace: float, noise: float) -> Loss:
    return lambda over, chance: start - way * (1 - 1 / (1 + pace * over)) + chance.gauss(0, noise)


STARTS = st.floats(-20, 20)
WAYS = st.floats(0.0, 20)
PACES = st.floats(0.1, 50)
NOISES = st.just(0.0) | st.floats(1e-6, 1.0)


@FEWER
@given(STARTS, WAYS, PACES, NOISES, SEEDS)
def test_what_never_learns_never_passes(start: float, way: float, pace: float, noise: float, seed: int) -> None:
    shown = three(falling(start, way, pace, noise), falling(start, 0.0, pace, noise), seed)
    assert judge(BASELINE, shown, AccuracyLimits(), 1).verdict is not PASS


@FEWER
@given(STARTS, NOISES, SEEDS)
@example(5e-324, 0.0, 0)
def test_where_the_script_itself_learns_nothing_nothing_is_told(start: float, noise: float, seed: int) -> None:
    level = falling(start, 0.0, 1.0, noise)
    result = judge(BASELINE, three(level, level, seed), AccuracyLimits(), 1)
    assert result.verdict is Noninferiority.INCONCLUSIVE
    assert result.reason and result.would_decide


@FEWER
@given(STARTS, WAYS, PACES, NOISES, SEEDS)
@example(0.0, 8.146131177706536e-234, 1.0, 0.0, 0)
def test_the_script_as_written_passes_against_itself_or_nothing_is_told(
    start: float, way: float, pace: float, noise: float, seed: int
) -> None:
    as_written = falling(start, way, pace, noise)
    shown = three(as_written, as_written, seed)
    told = descent_of([pair.baseline for pair in shown]) is Descent.DOWN
    result = judge(BASELINE, shown, AccuracyLimits(), 1)
    assert result.verdict is (PASS if told else Noninferiority.INCONCLUSIVE)


@FEWER
# Where a candidate hardly learns at all, its curve fits many shares alike, and rounding picks one.
@given(st.floats(0.5, 20), st.floats(0.01, 100), st.floats(-50, 50), st.floats(0.3, 1.0), SEEDS)
def test_the_unit_and_the_zero_of_a_loss_mean_nothing_to_what_is_learned_from_a_sample(
    pace: float, unit: float, zero: float, share: float, seed: int
) -> None:
    def read(unit: float, zero: float) -> float:
        def curve(own: float, number: int) -> Curve:
            loss = falling(1, 1, own, 0.01)
            outcome = learned(lambda over, chance: zero + unit * loss(over, chance), number)
            return next(iter(curves_of(outcome).values()))

        return sample_efficiencies([(curve(pace, seed), curve(pace * share, seed + 1))])[0]

    assert abs(read(unit, zero) / read(1.0, 0.0) - 1) < 0.05
