"""Screens of loops of JAX's: steps that run together are judged by their course, where the losses tell nothing."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.analysis.accuracy import AccuracyLimits, is_settled, judge, same_course, untold
from tuner.analysis.checks import CheckKind, Pair
from tuner.analysis.course import WEIGHTS
from tuner.analysis.learning import Descent, descent_of
from tuner.analysis.movement import MOVEMENT
from tuner.analysis.stats import Noninferiority
from tuner.devices.cpu import cpu_device
from tuner.formatting import screened_text
from tuner.model import BASELINE, Config, Outcome, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest, screen_window

SEVERAL = Config(steps_per_call=4)
SCRIPT = """
    import jax, jax.numpy as jnp, numpy as np
    data = np.random.default_rng(0)
    X, Y = data.normal(size=(1024, 16)).astype("float32"), data.normal(size=(1024, 1)).astype("float32")
    params = {"first": jnp.asarray(0.3 * data.normal(size=(16, 32)), "float32"), "last": 0.1 * jnp.ones((32, 1))}
    moments = jax.tree.map(jnp.zeros_like, params)

    @jax.jit
    def step(params, moments, x, y):
        def loss_of(params):
            return ((jnp.tanh(x @ params["first"]) @ params["last"] - y) ** 2).mean()
        loss, gradients = jax.value_and_grad(loss_of)(params)
        moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, gradients)
        return jax.tree.map(lambda p, m: p - RATE * m, params, moments), moments, loss

    for epoch in range(1000):
        losses = []
        for start in range(0, 1024, 32):
            params, moments, loss = step(params, moments, X[start : start + 32], Y[start : start + 32])
            losses.append(loss)
        print("loss", float(sum(losses)))
"""
COMPUTES_LOSS = "loss, gradients = jax.value_and_grad(loss_of)(params)"
LIMITS = AccuracyLimits()
SAMPLES = 32 * 101
Run = Callable[..., Outcome]


@pytest.fixture
def run(write_script: Callable[..., Path], tmp_path: Path) -> Run:
    """Runs the script in a screen: with a config, at a learning rate; ``silent``: without computing its loss."""

    def once(config: Config = BASELINE, rate: str = "1e-3", silent: str = COMPUTES_LOSS) -> Outcome:
        folder = tmp_path / "trials" / f"{len(config)} {rate}"
        folder.mkdir(parents=True)
        text = textwrap.dedent(SCRIPT).replace("RATE", rate).replace(COMPUTES_LOSS, silent)
        named = Script(str(write_script(text)), ())
        request = TrialRequest(folder, named, cpu_device(), config, window=screen_window(SAMPLES), seed=1)
        outcome = ProcessRunner().run(request, threading.Event())
        assert outcome.complete, outcome
        return outcome

    return once


@pytest.mark.slow  # unit/child/test_jax_weights.py, unit/analysis/test_course.py
def test_steps_that_run_together_keep_the_course_and_another_learning_rate_does_not(run: Run) -> None:
    """The labels are noise: the losses don't come down. The screen ends in the midst of what would run together."""
    written, own = run(), run(SEVERAL)
    pair = Pair(1, written, own)
    assert written.measurement is not None and own.measurement is not None
    samples = [[at for at, _ in each.losses[0].points] for each in (written.measurement, own.measurement)]
    assert samples[0] == samples[1] == [32.0 * step for step in range(1, 102)]
    assert descent_of([written]) is not Descent.DOWN and untold(SEVERAL, [pair], LIMITS, SAMPLES) is not None
    assert same_course([Pair(1, written, written)], LIMITS), "else no config is run"
    result = judge(SEVERAL, [pair], LIMITS, SAMPLES)
    assert result.verdict is Noninferiority.PASS, screened_text(result)
    course = [check for check in result.checks if check.kind is CheckKind.COURSE]
    assert len(course) == 2 and max(check.high for check in course) < 1e-3
    other = judge(SEVERAL, [Pair(1, written, run(SEVERAL, "1.1e-3"))], LIMITS, SAMPLES)
    assert other.verdict is Noninferiority.INCONCLUSIVE, screened_text(other)


@pytest.mark.slow  # unit/analysis/test_course.py, unit/study/test_course_screens.py
def test_steps_without_a_loss_are_told_by_their_weights(run: Run) -> None:
    """With ``grad`` alone nothing computes it."""
    silent = "loss, gradients = 0.0, jax.grad(loss_of)(params)"
    written, own = (run(config, silent=silent) for config in (BASELINE, SEVERAL))
    assert written.measurement is not None and not written.measurement.losses
    result = judge(SEVERAL, [Pair(1, written, own)], LIMITS, SAMPLES)
    assert result.verdict is Noninferiority.PASS, screened_text(result)
    (course,) = (check for check in result.checks if check.kind is CheckKind.COURSE)
    assert course.name == WEIGHTS and course.high < 1e-3
    other = judge(SEVERAL, [Pair(1, written, run(SEVERAL, "1.1e-3", silent=silent))], LIMITS, SAMPLES)
    assert other.verdict is Noninferiority.INCONCLUSIVE, screened_text(other)


@pytest.mark.slow  # unit/child/test_jax_weights.py
def test_weights_that_stand_still_fail_at_once(run: Run) -> None:
    pair = Pair(1, run(), run(SEVERAL, "0.0"))
    assert is_settled(SEVERAL, [pair])
    result = judge(SEVERAL, [pair], LIMITS, SAMPLES)
    assert result.verdict is Noninferiority.FAIL and f"{MOVEMENT} 0 times as written" in screened_text(result)
