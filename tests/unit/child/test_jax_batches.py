"""Which arrays are a step's batch in loops of JAX alone: mapped, closed over, refilled in place, and given twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.jax_here import jax
from support.jax_trial import Trial, X, Y, batches, descend, watched

jnp = jax.numpy
HIDDEN = 512


@pytest.fixture
def trial() -> Iterator[Trial]:
    """JAX under the watch."""
    with watched() as made:
        yield made


def layers(inputs: int = 4, hidden: int = HIDDEN, outputs: int = 1) -> Any:
    first, second = jnp.full((inputs, hidden), 0.01), jnp.full((hidden, outputs), 0.01)
    return {"w1": first, "b1": jnp.zeros(hidden), "b2": jnp.zeros(hidden), "w2": second}


def applied(params: Any, x: Any) -> Any:
    return (jnp.tanh(x @ params["w1"] + params["b1"]) + params["b2"]) @ params["w2"]


def loss_of_layers(params: Any, x: Any, y: Any) -> Any:
    return ((applied(params, x)[:, 0] - y) ** 2).mean()


# what is mapped over one device


def test_parameters_that_are_mapped_and_updated_by_hand_are_no_batch(trial: Trial) -> None:
    """They are as many arrays as the hidden layer is wide, and new with each call."""
    gradient = jax.pmap(jax.grad(lambda params, batch: loss_of_layers(params, batch["x"], batch["y"])))
    params = jax.tree_util.tree_map(lambda leaf: leaf[None], layers())
    for x, y in batches(20, 30):
        params = descend(params, gradient(params, {"x": x[None], "y": y[None]}))
        trial.trained(1, 20)
    assert trial.is_counted(late=1, late_rows=20)


def test_numbers_that_are_mapped_are_no_samples(trial: Trial) -> None:
    """A rate, and which step it is, as many as there are devices."""

    def update(params: Any, rate: Any, number: Any, x: Any) -> Any:
        gradients = jax.grad(lambda params: (applied(params, x) ** 2).mean() + 0.0 * number)(params)
        return jax.tree_util.tree_map(lambda p, g: p - rate * g, params, gradients)

    step = jax.pmap(update)
    params = jax.tree_util.tree_map(lambda leaf: leaf[None], layers())
    for number, (x, _) in enumerate(batches(20, 30)):
        params = step(params, jnp.full(1, 0.1 / (number + 1)), jnp.full(1, number), x[None])
        trial.trained(1, 20)
    assert trial.is_counted()
    assert trial.end()["unit"] == "samples"


def test_data_that_are_mapped_as_a_whole_are_a_batch(trial: Trial) -> None:
    step = jax.pmap(lambda params, x, y: descend(params, jax.grad(loss_of_layers)(params, x, y)))
    params, x, y = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf)[None], (layers(), X, Y))
    for _ in range(30):
        params = step(params, x, y)
        trial.trained(1, 240)
    assert trial.is_counted()
    assert trial.end()["unit"] == "samples"
