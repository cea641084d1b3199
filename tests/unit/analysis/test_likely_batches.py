"""What a larger batch is likely to learn from each sample, by the noise scale of the script."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.analysis.larger_batches import USUAL_NOISE, likely_efficiency, noise_of


def test_a_batch_of_the_noise_scale_needs_about_twice_the_samples() -> None:
    assert likely_efficiency(100.0, 100.0) == pytest.approx(0.505)
    assert likely_efficiency(1.0, USUAL_NOISE) == 1.0
    assert likely_efficiency(16.0, math.inf) == 1.0


@given(st.floats(2.0, 64.0), st.floats(0.01, 1e4))
def test_a_screen_tells_the_noise_scale(factor: float, noise: float) -> None:
    assert noise_of(factor, likely_efficiency(factor, noise)) == pytest.approx(noise, rel=1e-3)


@pytest.mark.parametrize("efficiency", [1.0, 1.3])
def test_what_learns_no_less_has_no_end(efficiency: float) -> None:
    assert noise_of(4.0, efficiency) == math.inf


def test_what_learns_less_than_any_model_says_gains_nothing_by_larger_steps() -> None:
    assert likely_efficiency(16.0, noise_of(4.0, 0.1)) == pytest.approx(1 / 16, rel=1e-3)
