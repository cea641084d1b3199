"""Losses that depend on the size of the batch can't tell how a config with another one learns."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from support import worlds

from tuner.analysis.accuracy import AccuracyLimits, judge
from tuner.analysis.checks import Pair
from tuner.analysis.first_loss import of_batch
from tuner.analysis.loss_checks import sample_efficiency
from tuner.analysis.stats import Noninferiority
from tuner.model import Config, LossSeries, Outcome

WRITTEN, SAMPLES = 64, 12_800
LARGER = AccuracyLimits(
    max_loss_increase=None, min_sample_efficiency=0.25, efficiency_alone=True, same_steps=False
)
FREE = AccuracyLimits()
Loss = Callable[[float, int], float]
"""The loss of a batch of so many samples, once a share of the way is gone."""


def mean_over_samples(way: float, size: int) -> float:
    return 0.5 + 1.8 * way


def between_samples(way: float, size: int) -> float:
    """Which of the others of a batch belongs to each sample: begins at the logarithm of their number."""
    return math.log(2 * size - 1) * (0.3 + 0.7 * way)


def correlation(way: float, size: int) -> float:
    """Of a covariance that is estimated from the batch: the fewer samples, the larger by chance."""
    return 0.2 * way + 3.0 / size


def summed(way: float, size: int) -> float:
    return size * mean_over_samples(way, size)


def run(loss: Loss, size: int, seed: int, *, noise: float = 0.02, learns: float = 1.0, first: int = 1) -> Outcome:
    """A screen in batches of that size; ``first``: so many steps have the first loss together."""
    chance, steps = random.Random(seed * size), SAMPLES // size
    ways = [math.exp(-5 * learns * step / steps) for step in range(steps)]
    losses = [loss(way, size) * (1 + chance.gauss(0, noise * math.sqrt(WRITTEN / size))) for way in ways]
    return _with_losses([(float(size * step), value) for step, value in enumerate(losses, start=1)][first - 1 :])


def _with_losses(points: list[tuple[float, float]]) -> Outcome:
    outcome = worlds.measured(100.0)
    assert outcome.measurement is not None
    series = LossSeries("train.py:9", "train.py:9", tuple(points))
    return replace(outcome, measurement=replace(outcome.measurement, losses=(series,)))


def pairs(loss: Loss, size: int, *, learns: float = 1.0, first: int = 1, noise: float = 0.02) -> list[Pair]:
    return [
        Pair(s, run(loss, WRITTEN, s, noise=noise), run(loss, size, s, noise=noise, learns=learns, first=first))
        for s in (1, 2, 3)
    ]


@pytest.mark.parametrize("size", [16, 32, 128, 512])
@pytest.mark.parametrize("loss", [between_samples, correlation, summed])
def test_a_loss_that_depends_on_the_batch_tells_nothing_of_another(loss: Loss, size: int) -> None:
    shown = pairs(loss, size)
    said = of_batch(shown)
    assert f"in a first step on {size} samples" in said and f"on {WRITTEN} as written" in said
    for limits in (LARGER, FREE):
        result = judge(Config(batch_size=size), shown, limits, SAMPLES)
        assert result.verdict is Noninferiority.INCONCLUSIVE
        assert said in result.reason
        assert "--screen-samples" not in result.would_decide, "a longer one would tell no more"
        # No metric says how soon a loss is reached, by which larger batches are judged.
        assert ("--max-metric-drop" in result.would_decide) is limits.same_steps
        assert result.efficiency is None
    assert sample_efficiency(shown, 0.05) is None


@pytest.mark.parametrize("noise", [0.001, 0.05, 0.3])
@pytest.mark.parametrize("size", [16, 32, 128, 512])
def test_a_mean_over_samples_tells_in_batches_of_any_size(size: int, noise: float) -> None:
    for seed in range(40):
        shown = [
            Pair(s, run(mean_over_samples, WRITTEN, s, noise=noise), run(mean_over_samples, size, s, noise=noise))
            for s in range(3 * seed, 3 * seed + 3)
        ]
        assert of_batch(shown) == ""
    assert judge(Config(batch_size=size), pairs(mean_over_samples, size), LARGER, SAMPLES).efficiency is not None


def test_batches_that_are_the_same_with_each_seed_are_one_draw_of_them() -> None:
    """A script that doesn't shuffle has the same easy samples first with every seed: 8 of these 400 lost batches of 16
    times the size to that.
    """
    refused = 0
    for draw in range(400):
        chance = random.Random(draw)
        levels = [1 + chance.gauss(0, 0.3) for _ in range(96)]  # of 16 samples each
        written, larger = _ordered(levels, 16, 1), _ordered(levels, 256, 16)
        refused += bool(of_batch([Pair(seed, written, larger) for seed in (1, 2, 3)]))
    assert refused <= 3


def _ordered(levels: list[float], size: int, together: int) -> Outcome:
    """A screen whose losses are those of batches that hold so many of these together."""
    firsts = range(0, len(levels), together)
    means = [sum(levels[first : first + together]) / together for first in firsts]
    losses = [1 + math.exp(-3 * n / len(means)) * level for n, level in enumerate(means)]
    return _with_losses([(float(size * n), loss) for n, loss in enumerate(losses, start=1)])


@pytest.mark.parametrize("apart", [-0.02, 0.02])
def test_what_is_little_of_the_loss_may_be_much_of_its_way(apart: float) -> None:
    """By 2% lower in batches of four times the size, of a loss that comes down by 12%: it seemed to be learned as from
    1.8 times the samples.
    """
    shown = pairs(lambda way, size: 2.0 + 0.24 * way + (2 * apart if size > WRITTEN else 0.0), 256, noise=0.001)
    assert "it depends on the size of the batch" in of_batch(shown)
    assert sample_efficiency(shown, 0.05) is None


def test_what_is_little_of_its_way_is_no_dependence() -> None:
    """As with BatchNorm, by up to half a percent of the loss."""
    shown = pairs(lambda way, size: 2.0 + 0.6 * way + (0.01 if size > WRITTEN else 0.0), 256, noise=0.0001)
    assert of_batch(shown) == "" and sample_efficiency(shown, 0.05) is not None


def test_a_first_step_that_goes_far_is_no_dependence() -> None:
    """A larger learning rate shows in the second loss: the first one is of weights that no step has changed."""
    assert of_batch(pairs(mean_over_samples, 512, learns=30.0)) == ""


def test_nothing_is_said_where_the_first_loss_is_of_several_steps() -> None:
    """As earlier versions read it, and of what has several steps in one call."""
    assert of_batch(pairs(between_samples, 128, first=2)) == ""
    several = [replace(pair, candidate=_of_steps(pair.candidate, 1000)) for pair in pairs(between_samples, 128)]
    assert of_batch(several) == ""


def _of_steps(outcome: Outcome, steps: int) -> Outcome:
    return replace(outcome, knowledge=replace(outcome.knowledge, steps=steps))


def test_the_same_batch_begins_alike_whatever_its_loss_is() -> None:
    assert of_batch(pairs(summed, WRITTEN, learns=0.1)) == ""


def test_a_loss_that_is_no_number_fails_all_the_same() -> None:
    shown = pairs(summed, 128)
    broken = pairs(lambda way, size: math.nan if way < 0.5 else 1.0, 128)
    mixed = [replace(a, candidate=b.candidate) for a, b in zip(shown, broken, strict=True)]
    assert judge(Config(batch_size=128), mixed, FREE, SAMPLES).verdict is Noninferiority.FAIL
