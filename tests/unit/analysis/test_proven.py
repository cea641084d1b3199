"""The interval of a gain that was proven holds the truth, however much luck it took to prove it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from tuner.analysis.proven import DEEPEST, Proof, proven_interval
from tuner.analysis.stats import student_t_quantile

SLOW = pytest.mark.slow
LEVEL = 0.974
"""Of the first look of the first finals."""


def needed(rounds: int, level: float = LEVEL) -> float:
    return student_t_quantile((1 + level) / 2, rounds - 1.0)


def statistics(gains: np.ndarray) -> np.ndarray:
    return np.asarray(math.sqrt(gains.shape[1]) * gains.mean(axis=1) / gains.std(axis=1, ddof=1))


@pytest.mark.parametrize(
    ("rounds", "gain"),
    [(5, 0.02), pytest.param(5, 0.05, marks=SLOW), pytest.param(8, 0.3, marks=SLOW), (27, 0.01)],
)
def test_it_holds_the_truth_in_95_percent_of_what_is_proven(rounds: int, gain: float) -> None:
    gains = np.random.default_rng(3).normal(gain, 0.06, (12_000, rounds))
    proven = gains[statistics(gains) > needed(rounds)][:240]
    found = [proven_interval(list(row), Proof(needed(rounds)), 0.95) for row in proven]
    held = sum(each.low <= gain <= each.high for each in found)
    assert len(proven) > 200 and 0.91 <= held / len(proven) <= 0.985
    assert all(0 <= each.low <= each.estimate <= each.high for each in found)


def test_it_knows_that_a_first_look_had_proven_it() -> None:
    """Of eight rounds, where the first five may have been enough: by the last look's rule alone 87% hold the truth."""
    level = 1 - (1 - LEVEL) / 10
    gains = np.random.default_rng(4).normal(0.01, 0.06, (40_000, 8))
    late, at_once, early = needed(8, level), needed(8), needed(5)
    whole = statistics(gains)
    rows = gains[(whole > late) | ((whole > at_once) & (statistics(gains[:, :5]) > early))][:240]
    proof = Proof(late, 5, early, at_once)
    found = [proven_interval(list(row), proof, 0.95) for row in rows]
    held = sum(each.low <= 0.01 <= each.high for each in found)
    assert len(rows) == 240 and 0.91 <= held / len(rows) <= 0.985


@pytest.mark.parametrize("rounds", [3, pytest.param(4, marks=SLOW), pytest.param(5, marks=SLOW)])
def test_it_knows_that_the_first_look_proved_it_where_no_calm_round_followed(rounds: int) -> None:
    """The rounds that were added were disturbed: these have proven it by the first look's rule alone."""
    level = 1 - (1 - LEVEL) / 10
    proof = Proof(needed(rounds, level), rounds, needed(rounds), needed(rounds))
    gains = np.random.default_rng(5).normal(0.1, 0.06, (4_000, rounds))
    rows = gains[statistics(gains) > needed(rounds)][:240]
    found = [proven_interval(list(row), proof, 0.95) for row in rows]
    assert all(each.high > each.low for each in found)
    assert sum(each.low <= 0.1 <= each.high for each in found) / len(rows) >= 0.91


@pytest.mark.parametrize(
    ("rounds", "share"), [(3, 0.25), pytest.param(4, 0.25, marks=SLOW), pytest.param(5, 0.1, marks=SLOW)]
)
def test_it_holds_where_a_proof_asks_for_much(rounds: int, share: float) -> None:
    """Of several candidates, or in later finals, only the luckiest rounds prove a gain of 2%."""
    level = 1 - (1 - LEVEL) * share
    gains = np.random.default_rng(6).normal(0.02, 0.06, (600_000, rounds))
    rows = gains[statistics(gains) > needed(rounds, level)][:300]
    found = [proven_interval(list(row), Proof(needed(rounds, level)), 0.95) for row in rows]
    assert len(rows) == 300
    assert 0.9 <= sum(each.low <= 0.02 <= each.high for each in found) / len(rows) <= 0.985


def test_it_is_told_no_higher_than_it_was_measured() -> None:
    gains = np.random.default_rng(7).normal(0.1, 0.06, (400, 3))
    for row in gains[statistics(gains) > needed(3)][:60]:
        assert proven_interval(list(row), Proof(needed(3)), 0.95).estimate <= row.mean() + 1e-12


def test_a_gain_far_beyond_its_proof_has_the_usual_interval() -> None:
    gains = [0.5, 0.53, 0.48, 0.51, 0.49]
    found = proven_interval(gains, Proof(needed(5)), 0.95)
    half = student_t_quantile(0.975, 4) * float(np.std(gains, ddof=1)) / math.sqrt(5)
    assert (found.low, found.estimate, found.high) == pytest.approx((0.502 - half, 0.502, 0.502 + half))


def test_the_higher_the_rounds_the_higher_the_interval() -> None:
    spread = np.array([-0.03, 0.01, 0.0, 0.04, -0.02])
    found = [proven_interval(list(mean + spread), Proof(needed(5)), 0.95) for mean in np.arange(0.06, 0.3, 0.01)]
    assert all(0.005 < later.high - earlier.high < 0.02 for earlier, later in pairwise(found))
    assert all(later.low >= earlier.low - 1e-3 for earlier, later in pairwise(found))
    assert found[0].low == 0.0 < found[-1].low


def test_three_rounds_do_not_leave_everything_open() -> None:
    gains = [0.69, 0.62, 0.73]
    found = proven_interval(gains, Proof(needed(3)), 0.95)
    half = needed(3) * float(np.std(gains, ddof=1)) / math.sqrt(3)
    assert found.low >= float(np.mean(gains)) - DEEPEST * half - 1e-9
    assert found.low > 0.1


@pytest.mark.parametrize("gains", [[], [0.1], [0.1, 0.2], [0.1, 0.1, 0.1]])
def test_what_shows_no_noise_has_no_interval(gains: list[float]) -> None:
    with pytest.raises(ValueError, match="three gains"):
        proven_interval(gains, Proof(1.0), 0.95)
