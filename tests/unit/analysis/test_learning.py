"""What is read from made-up loss curves: how far they came down, and as from which share of the samples."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from support import worlds

from tuner.analysis.learning import (
    Curve,
    Descent,
    curves_of,
    descent_of,
    has_come_down,
    is_later,
    least_efficiency,
    sample_efficiencies,
    time_to_loss,
)
from tuner.model import LossSeries, Outcome, Ratio


def outcome(*series: LossSeries) -> Outcome:
    measured = worlds.measured(1.0)
    assert measured.measurement is not None
    return replace(measured, measurement=replace(measured.measurement, losses=series))


def sample_efficiency(before: Curve, after: Curve) -> float:
    [found] = sample_efficiencies([(before, after)])
    return found


def exponential(share: float = 1.0, *, noise: float = 0.0, seed: int = 0, batch: int = 64, floor: float = 0.1) -> Curve:
    chance = random.Random(seed)
    samples = np.arange(0, 64 * 300, batch, dtype=np.float64)
    losses = floor + 2 * np.exp(-share * samples / 3000)
    return Curve(samples, losses + np.array([chance.gauss(0, noise) for _ in samples]))


def power(share: float = 1.0, *, noise: float = 0.0, seed: int = 0) -> Curve:
    """As a language model's: it keeps coming down, ever more slowly."""
    chance = random.Random(seed)
    samples = np.arange(0, 64 * 300, 64, dtype=np.float64)
    losses = 2 + 8 * (1 + share * samples / 500) ** -0.4
    return Curve(samples, losses + np.array([chance.gauss(0, noise) for _ in samples]))


@pytest.mark.parametrize("factor", [4, 16])
@pytest.mark.parametrize("share", [0.1, 0.14, 0.25, 0.5, 1.0])
def test_few_large_steps_tell_the_share_as_well_as_many_small_ones(factor: int, share: float) -> None:
    """Twenty of them, as a screen of a larger batch takes: the finer curve isn't drawn as coarsely as theirs."""
    end = 32 * factor * 20

    def curve(batch: int, learned: float) -> Curve:
        samples = np.arange(0.0, end, batch)
        return Curve(samples, 0.3 + 2.0 * np.exp(-samples * learned / 1500))

    assert sample_efficiency(curve(32, 1.0), curve(32 * factor, share)) == pytest.approx(share, rel=0.01)


def test_a_loss_is_that_of_the_weights_before_its_step() -> None:
    series = LossSeries("train.py:9", "train.py:9", ((64.0, 2.0), (128.0, 1.5), (192.0, 1.2)))
    [curve] = curves_of(outcome(series)).values()
    assert curve.samples.tolist() == [0.0, 64.0, 128.0]


@pytest.mark.parametrize("points", [((64.0, 1.0),), (), ((64.0, 1.0), (128.0, math.nan))])
def test_what_is_no_curve_is_left_out(points: tuple[tuple[float, float], ...]) -> None:
    assert curves_of(outcome(LossSeries("", "", points))) == {}
    assert descent_of([outcome(LossSeries("", "", points))]) is Descent.LEVEL


@pytest.mark.parametrize("made", [exponential, power])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.8, 0.9, 1.0, 1.25, 2.0])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_share_of_the_samples_is_read_from_the_curves(made: type, share: float, noise: float) -> None:
    found = sample_efficiency(made(noise=noise, seed=1), made(share, noise=noise, seed=2))
    assert found == pytest.approx(share, rel=0.06 if noise else 0.02)


def test_it_is_the_same_read_either_way() -> None:
    before, after = exponential(noise=0.05, seed=1), exponential(0.7, noise=0.05, seed=2)
    assert sample_efficiency(before, after) * sample_efficiency(after, before) == pytest.approx(1.0, rel=0.01)


def test_whoever_never_learns_learns_as_from_none() -> None:
    still = Curve(exponential().samples, np.full(300, 2.1))
    assert sample_efficiency(exponential(), still) == pytest.approx(0.02)


def test_noise_that_both_share_does_not_draw_them_together() -> None:
    """Both train on the same batches: where they are loud and the loss has come down early, all else is quiet."""
    chance, samples = random.Random(3), np.arange(470.0) * 64
    pairs = []
    for _ in range(6):
        batches = np.array([chance.gauss(0, 0.1) for _ in samples])
        pairs.append((
            Curve(samples, 0.5 + 2 * 0.5 ** (samples / 1200) + batches),
            Curve(samples, 0.5 + 2 * 0.5 ** (0.9 * samples / 1200) + batches),
        ))  # fmt: skip
    assert sample_efficiencies(pairs) == pytest.approx([0.9] * 6, abs=0.02)


def test_batches_of_other_sizes_are_compared_by_their_samples() -> None:
    assert sample_efficiency(exponential(), exponential(batch=256)) == pytest.approx(1.0, rel=0.05)


def test_a_plateau_tells_by_the_way_to_it() -> None:
    early = Curve(exponential().samples, 0.5 + 2 * np.exp(-exponential().samples / 500))
    late = Curve(early.samples, 0.5 + 2 * np.exp(-early.samples * 0.8 / 500))
    assert sample_efficiency(early, late) == pytest.approx(0.8, rel=0.05)


@pytest.mark.parametrize(
    ("losses", "down"),
    [
        ([2.0] * 100 + [1.0] * 100, True),
        ([2.3] * 100 + [2.28] * 100, False),  # within five percent of where it ends
        ([1.0] * 100 + [2.0] * 100, False),
        ([-1.0] * 100 + [-2.0] * 100, True),
        ([1.0, 3.0] * 50 + [0.5, 2.5] * 50, False),  # within its noise
    ],
)
def test_a_loss_has_come_down_beyond_its_noise(losses: list[float], down: bool) -> None:
    assert has_come_down([Curve(np.arange(200.0), np.array(losses))]) is down


def test_losses_of_one_step_come_down_together() -> None:
    up, down = [1.0 + step / 100 for step in range(100)], [9.0 - step / 20 for step in range(100)]
    together = outcome(worlds.series(down, "a"), worlds.series(up, "b", "a"))
    apart = outcome(worlds.series(down, "a"), worlds.series(up, "b"))
    assert descent_of([together]) is Descent.DOWN
    assert descent_of([apart]) is Descent.MIXED
    assert descent_of([outcome(worlds.series(up, "a"), worlds.series(up, "b"))]) is Descent.LEVEL
    assert descent_of([together, apart]) is Descent.MIXED
    assert least_efficiency(together, together) == pytest.approx(1.0)
    assert least_efficiency(apart, apart) is None


def test_time_to_loss_is_the_product_with_an_interval() -> None:
    found = time_to_loss(Ratio(2.0, 1.8, 2.2), Ratio(0.9, 0.8, 1.0))
    assert found.ratio == pytest.approx(1.8)
    assert 1.8 * 0.8 < found.low < min(1.8 * 0.9, 2.0 * 0.8) < found.ratio < found.high < 2.2
    surely = time_to_loss(Ratio(2.0, 1.8, 2.2), Ratio(1.0, 1.0, 1.0))
    assert (surely.low, surely.high) == pytest.approx((1.8, 2.2))
    unknown = time_to_loss(Ratio(2.0, 1.8, 2.2), Ratio(0.9, 0.0, math.inf))
    assert (unknown.low, unknown.high) == (0.0, math.inf)


def test_a_config_is_later_by_the_whole_interval_and_one_of_tier_3_by_the_estimate() -> None:
    efficiency = Ratio(0.9, 0.85, 0.95)
    surely, perhaps = Ratio(1.02, 1.01, 1.03), Ratio(1.08, 1.02, 1.14)
    assert is_later(surely, efficiency, 2) and is_later(surely, efficiency, 3)
    assert is_later(perhaps, efficiency, 3) and not is_later(perhaps, efficiency, 2)
    assert not is_later(Ratio(1.3, 1.2, 1.4), efficiency, 3)
