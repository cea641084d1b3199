"""Loops of Equinox, in a real child: what trains, and what is validation of the script's.

They run in the environment of `make test-jax`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.jax
Run = Callable[..., Any]
Write = Callable[..., Path]

SCRIPT = """
import equinox as eqx, jax, jax.numpy as jnp, numpy as np, optax
data = np.random.default_rng(0)
X = data.normal(size=(400, 8)).astype("float32")
Y = (X @ data.normal(size=(8, 3)).astype("float32")).argmax(1)
model = eqx.nn.MLP(8, 3, 16, 2, key=jax.random.key(0))
optimizer = optax.adam(1e-2)
held = optimizer.init(eqx.filter(model, eqx.is_array))

def loss_of(model, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()

@eqx.filter_jit
def make_step(model, held, x, y):
    loss, gradients = eqx.filter_value_and_grad(loss_of)(model, x, y)
    updates, held = optimizer.update(gradients, held, model)
    return eqx.apply_updates(model, updates), held, loss

score = eqx.filter_jit(loss_of)
scored = 0
for number in range(80):
    start = number * 20 % 300
    model, held, loss = make_step(model, held, X[start : start + 20], Y[start : start + 20])
    if number % 20 == 19:
        scored += float(sum(score(model, X[at : at + 20], Y[at : at + 20]) for at in range(300, 400, 20)))
"""


SCORED = """
score = eqx.filter_jit(loss_of)
"""
PREDICTS = """
predict = eqx.filter_jit(lambda model, x: jax.vmap(model)(x))
score = lambda model, x, y: (predict(model, x).argmax(1) == y).sum()
"""
ACTS = """
act = eqx.filter_jit(lambda model, x: jax.vmap(model)(x))
score = lambda model, x, y: act(model, data.normal(size=(20, 8)).astype("float32")).sum()
"""
WINDOW = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}


@pytest.mark.parametrize(("what", "comes_again"), [(PREDICTS, True), (ACTS, False)])
def test_predictions_are_set_apart_once_the_same_data_came_again(
    what: str, comes_again: bool, run_child: Run, write_script: Write
) -> None:
    """A policy gives arrays as well, of what is never the same: its calls are part of the loop."""
    assert SCORED in SCRIPT
    script = SCRIPT.replace(SCORED, what).replace("range(80)", "range(120)")
    ran = run_child(write_script(script), window=WINDOW)
    assert ran.returncode == 0, ran.output
    assert (ran.facts["unit"], ran.facts["steps"], ran.facts["samples"]) == ("samples", 120, 2400), ran.facts
    apart = sum(block["flagged"] for block in ran.of("block"))
    assert apart >= 2 if comes_again else apart == 0, ran.facts["remarks"]


def test_its_scores_are_set_apart_as_those_of_jax(run_child: Run, write_script: Write) -> None:
    """The function that it compiles is its own, though the script's is in it: scores counted as training."""
    window = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}
    ran = run_child(write_script(SCRIPT), window=window)
    assert ran.returncode == 0, ran.output
    assert (ran.facts["unit"], ran.facts["steps"], ran.facts["samples"]) == ("samples", 80, 1600), ran.facts
    assert sum(block["flagged"] for block in ran.of("block")) >= 2
    assert any("was set apart as validation" in remark for remark in ran.facts["remarks"])
    assert ran.facts["left_out"]["steps_per_call"] == "a library compiles the training step"


def test_a_screen_sees_how_far_its_models_move(run_child: Run, write_script: Write) -> None:
    ran = run_child(write_script(SCRIPT), window=WINDOW, seed=1)
    assert ran.returncode == 0, ran.output
    (told,) = ran.of("weights")
    assert told["steps"] == 79 and len(told["changes"]) == 6 and told["path"] > 0
