"""Losses that hold derivatives by their inputs, as of networks for differential equations: a look at one is no step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.jax_here import jax
from support.jax_trial import descend, watched

jnp = jax.numpy
POINTS = jnp.linspace(-1.0, 1.0, 200)
STEPS = 30


def network(params: Any, x: Any) -> Any:
    return jnp.tanh(params["w"] * x) @ params["v"]


def loss(params: Any, points: Any) -> Any:
    """The mean square of what a differential equation isn't fulfilled by, and the boundary."""
    slope = jax.vmap(jax.grad(network, 1), (None, 0))(params, points)
    return ((slope + 2 * points) ** 2).mean() + (network(params, 0.0) - 1) ** 2


def parts(params: Any, points: Any) -> Any:
    return jnp.stack([loss(params, points), network(params, 0.0)])


def held(params: Any) -> Any:
    return loss(params, POINTS)


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("looks", [loss, parts, held], ids=["loss", "parts of it", "of points that it holds"])
def test_a_loss_that_is_looked_at_between_steps_is_no_step(looks: Callable[..., Any], every: int) -> None:
    """It was taken for the step that counts, and those that train were none: 3 of 30."""
    params = {"w": jnp.ones(8), "v": jnp.ones(8) / 8}
    with watched() as trial:
        shown, gradient = jax.jit(looks), jax.jit(jax.grad(loss))
        for number in range(STEPS):
            if number % every == 0:
                float(shown(*((params,) if looks is held else (params, POINTS))).sum())
            gradients = gradient(params, POINTS)
            params = descend(params, gradients)
            trial.trained(1, len(POINTS))
        assert trial.is_counted(late=1, late_rows=len(POINTS))


@pytest.mark.parametrize("every", [1, 10])
def test_a_derivative_that_is_looked_at_before_an_update_gives_no_samples(every: int) -> None:
    """It was the first gradient of a step, so that its samples counted: 8 for each 200. The one before the first update
    is a step of its own.
    """
    params = {"w": jnp.ones(8), "v": jnp.ones(8) / 8}
    with watched() as trial:
        steps = trial.adapter.steps
        assert steps is not None
        slope, gradient = jax.jit(jax.vmap(jax.grad(network, 1), (None, 0))), jax.jit(jax.grad(loss))
        for number in range(STEPS):
            if number % every == 0:
                slope(params, POINTS[:77])
            gradients = gradient(params, POINTS)
            params = steps.update(lambda p=params, g=gradients: descend(p, g), params)
        assert (trial.steps, trial.samples) == (STEPS + 1, STEPS * len(POINTS) + 8)


@pytest.mark.parametrize("size", [1, 8])
def test_a_step_of_few_weights_is_one(size: int) -> None:
    """What it gives is as large as what is differentiated, and not as the points of which there are derivatives."""
    params = {"w": jnp.ones(size), "v": jnp.ones(size) / size}
    with watched() as trial:
        step = jax.jit(lambda p, x: descend(p, jax.grad(loss)(p, x)))
        for _ in range(STEPS):
            params = step(params, POINTS)
            trial.trained(1, len(POINTS))
        assert trial.is_counted()
