"""Losses that leave values somewhere while JAX traces them, with the knob "checkpointing": all is as written."""

from __future__ import annotations

from pathlib import Path

from support.jax_computed_again import LOOP, STEP, found

from tuner.child.jax.checkpointing import HELD


def test_a_rule_that_holds_values_of_the_trace_is_left_as_it_is(tmp_path: Path) -> None:
    """It is legal as long as what it holds isn't differentiated."""
    text = """
def loss_of(params, x):
    scale = jnp.abs(x).max()
    @jax.custom_vjp
    def scaled(x):
        return x * scale
    scaled.defvjp(lambda x: (x * scale, None), lambda _, g: (g,))
    return (layers(params, scaled(x @ params[0])) ** 2).mean()
"""
    assert found(text + STEP + LOOP, tmp_path) == [HELD]


def test_what_the_loss_leaves_elsewhere_can_still_be_read(tmp_path: Path) -> None:
    """What isn't differentiated may leave it so."""
    text = """
class Model:
    def loss(self, params, x):
        self.scale = jnp.abs(x).max()
        return (layers(params, x / self.scale) ** 2).mean()
model = Model()
@jax.jit
def step(params, x):
    gradients = jax.grad(model.loss)(params, x)
    return descend(params, gradients), model.scale
"""
    assert found(text + LOOP + "del model", tmp_path) == [HELD]
