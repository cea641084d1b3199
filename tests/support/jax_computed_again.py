"""Losses of JAX under the knob "checkpointing": each script as plain Python would run it, and with the knob."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy

from support.jax_here import jax
from support.jax_regression import written
from support.jax_trial import watched

HEAD = """
import functools
import jax, jax.numpy as jnp, numpy as np
X = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
keys = jax.random.split(jax.random.PRNGKey(0), 9)
params, kept = [0.3 * jax.random.normal(key, (16, 16)) for key in keys[:6]], []
def layers(params, x):
    for weights in params:
        x = jnp.tanh(x @ weights)
    return x
def descend(params, gradients):
    return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, gradients)
"""
STEP = """
@jax.jit
def step(params, x):
    loss, gradients = jax.value_and_grad(loss_of)(params, x)
    return descend(params, gradients), loss
"""
LOOP = """
for number in range(3):
    params, loss = step(params, X + number)
"""
PLAIN = """
def loss_of(params, x):
    return (layers(params, x) ** 2).mean()
"""


def ran(text: str, folder: Path, **given: Any) -> tuple[list[Any], Any]:
    """What a script ends with, and the trial of it."""
    run = written(HEAD + text, folder)
    jax.devices()  # its client is made here, without what the knob asks of it
    with watched(**{"config": {"checkpointing": True}, **given}) as trial:
        end = run()
        trial.session.finish(complete=False)
    return end, trial


def facts_of(trial: Any) -> dict[str, Any]:
    [facts] = trial.log.of("facts")
    return dict(facts)


def tried(text: str, folder: Path, **given: Any) -> Any:
    """The trial of a script, which ends with what it does without the knob."""
    expected = written(HEAD + text, folder)()
    end, trial = ran(text, folder, **given)
    assert len(end) == len(expected)
    for leaf, plain in zip(end, expected, strict=True):
        assert (leaf.dtype, leaf.shape) == (plain.dtype, plain.shape)
        numpy.testing.assert_allclose(leaf, plain, rtol=2e-5, atol=1e-7)
    assert numpy.isfinite(expected[0]).all() and not numpy.allclose(expected[0], 0)
    return trial


def found(text: str, folder: Path) -> list[str]:
    """Why each loss isn't computed again, "" where it is. What the script ends with has to be what it is without."""
    return told(tried(text, folder))


def told(trial: Any) -> list[str]:
    """Why each loss of a trial isn't computed again."""
    return list(trial.adapter._checkpointing.found.values())
