"""Losses that leave values somewhere while JAX traces them, with the knob "checkpointing": all is as written."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.jax_computed_again import LOOP, STEP, found, ran

from tuner.child.jax.checkpointing import HELD


@pytest.mark.slow
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


@pytest.mark.slow  # 3 s beside three others
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


HOLDING = {
    "a key that goes on": """
class Model:
    def loss(self, params, x):
        for weights in params[:2]:
            self.key, drawn = jax.random.split(self.key)
            x = jnp.where(jax.random.bernoulli(drawn, 0.8, x.shape), jnp.tanh(x @ weights), 0)
        return (x**2).mean()
model = Model()
@jax.jit
def step(params, key, x):
    model.key = key
    loss, gradients = jax.value_and_grad(model.loss)(params, x)
    return descend(params, gradients), model.key, loss
key = jax.random.PRNGKey(1)
for number in range(3):
    params, key, loss = step(params, key, X)
kept.append(key)
del model
""",
    "a count, a constant and losses of layers": """
class Model:
    count, mask, beside = 0, None, []
    def loss(self, params, x):
        self.count += 1
        if self.mask is None:
            self.mask = jnp.tril(jnp.ones((16, 16)))
        for weights in params:
            x = jnp.tanh(x @ (weights * self.mask * self.count))
            self.beside.append((x**2).mean())
        return (x**2).mean() + sum(self.beside)
model = Model()
loss_of = model.loss
""" + STEP.replace(", loss\n", ", loss + model.mask.sum()\n") + LOOP + """
kept.append(np.array(model.count))
del model, loss_of
""",
    "what is an integer among the parameters": """
class Model:
    def loss(self, tree, x):
        self.calls = getattr(self, "calls", 0) + 1
        self.scale = x.std() * tree["at"]
        return (layers(tree["weights"], x / self.scale) ** 2).mean() * self.calls
model, tree = Model(), {"at": jnp.int32(1), "weights": params}
@jax.jit
def step(tree, x):
    loss, gradients = jax.value_and_grad(model.loss, allow_int=True)(tree, x)
    return {"at": tree["at"] + 1, "weights": descend(tree["weights"], gradients["weights"])}, loss * model.scale
for number in range(3):
    tree, loss = step(tree, X)
params = tree["weights"]
kept.append(np.array(model.calls))
del model, tree
""",
}  # fmt: skip


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize(
    "name", [pytest.param(it, marks=() if it == "a key that goes on" else pytest.mark.slow) for it in HOLDING]
)
def test_a_loss_that_keeps_something_is_called_once_for_each_trace(name: str, tmp_path: Path) -> None:
    """What it finds of the call before would be dead, and what it counts other than as written."""
    assert found(HOLDING[name], tmp_path) == [HELD]


WITHIN_VMAP = """
class Model:
    calls = 0
    def loss(self, params, x):
        CALLED
        self.scale = jnp.abs(x).max()
        return (layers(params, jax.nn.silu(x / self.scale)) ** 2).mean() * max(1, self.calls)
model = Model()
@jax.jit
def step(params, x):
    gradients = jax.vmap(jax.grad(model.loss), in_axes=(None, 0))(params, x)
    return descend(params, jax.tree_util.tree_map(lambda each: each.mean(0), gradients)), x.sum()
"""


@pytest.mark.slow
def test_a_loss_within_vmap_is_called_again_where_that_changes_nothing(tmp_path: Path) -> None:
    """What it leaves can't be made values of a trace around that has rows."""
    assert found(WITHIN_VMAP.replace("CALLED", "pass") + LOOP + "del model", tmp_path) == [HELD]


def test_a_loss_within_vmap_that_counts_its_calls_is_refused(tmp_path: Path) -> None:
    """Called again it trained by another loss, and nothing said so."""
    with pytest.raises(RuntimeError, match="its values are held elsewhere, and called again it is another loss"):
        ran(WITHIN_VMAP.replace("CALLED", "self.calls += 1") + LOOP + "del model", tmp_path)
