"""JAX's steps that go without autotune's instruments, where the loop isn't one function's for ever."""

from __future__ import annotations

import functools
from typing import Any

from support.jax_here import jax
from support.jax_trial import batches, descend, loss_of, watched, weights

from tuner.child.instruments import LEAST_STEPS, SHORT_STEP_S


def loop_of(rate: float) -> Any:
    """Trains by a function of its own, for so many steps."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(params: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        return descend(params, jax.tree_util.tree_map(lambda g: rate * g, gradients)), loss

    def train(steps: int) -> None:
        params = weights()
        for x, y in batches(20, steps):
            params, _ = update(params, x, y)

    return train


def test_they_are_on_again_for_a_function_that_was_made_meanwhile() -> None:
    """As one is for each fold or stage; else they would be off for the rest of the trial."""
    with watched() as trial:
        first, second, instruments = loop_of(1.0), loop_of(0.5), trial.session.clock.instruments
        first(3)
        instruments.is_wanted = instruments.may_go_off = lambda: True
        assert instruments.begin(SHORT_STEP_S, lambda: None)
        first(LEAST_STEPS + 1)
        assert instruments.off
        before = trial.steps
        second(300)
        assert trial.steps > before + 100


def test_a_function_that_may_validate_is_seen() -> None:
    """It is called with the parameters between steps, and no part of the loop."""
    with watched() as trial:
        train, instruments = loop_of(1.0), trial.session.clock.instruments
        score = jax.jit(functools.partial(loss_of))
        held, (x, y) = weights(), next(iter(batches(20, 1)))
        train(200)
        score(held, x, y)
        train(200)
        instruments.is_wanted = instruments.may_go_off = lambda: True
        assert instruments.begin(SHORT_STEP_S, lambda: None)
        train(LEAST_STEPS + 1)
        assert instruments.off
        score(held, x, y)
        assert not instruments.off and trial.session.clock.validating
