"""Losses that are computed again in the backward, in a real child: the same weights, and less memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
Write = Callable[..., Path]
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}
KNOWN = {"framework": "jax", "unit": "samples", "as_written": {"checkpointing": False}}
SCRIPT = """
import sys, jax, jax.numpy as jnp, numpy as np
def loss_of(weights, x):
    for each in weights:
        x = jnp.tanh(x @ each)
    return (x**2).mean()
@jax.jit
def step(weights, x):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x)
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)], loss
def main():
    draw = np.random.default_rng(0)
    weights = [jnp.asarray(0.1 * draw.normal(size=(128, 128)), "float32") for number in range(12)]
    for number in range(int(sys.argv[1])):
        weights, loss = step(weights, np.full((2048, 128), 1 + number, "float32"))
        print("loss", float(loss))
    print("loss", float(sum(weight.sum() for weight in weights)))
    program = step.lower(weights, jax.ShapeDtypeStruct((2048, 128), "float32")).compile()
    print("takes", program.memory_analysis().temp_size_in_bytes)
main()
"""


def losses_of(ran: Any) -> list[float]:
    return [float(each) for each in re.findall(r"^loss (\S+)$", ran.output, re.MULTILINE)]


def taken_by(ran: Any) -> int:
    """Bytes beside a step's arrays, by XLA's own count."""
    return int(re.findall(r"^takes (\d+)$", ran.output, re.MULTILINE)[-1])


def test_it_is_offered_takes_less_memory_and_trains_alike(run_child: Run, write_script: Write) -> None:
    script = write_script(SCRIPT)
    written = run_child(script, argv=("4",), window=WHOLE)
    assert written.facts["as_written"]["checkpointing"] is False, written.facts["left_out"]
    ran = run_child(script, {"checkpointing": True}, argv=("4",), window=WHOLE, knowledge=KNOWN)
    assert ran.returncode == 0, ran.output
    assert ran.evidence("checkpointing") == "verified", ran.of("knob")
    assert [note["text"] for note in ran.of("note")] == []
    assert losses_of(ran) == pytest.approx(losses_of(written), rel=1e-6) and len(losses_of(ran)) == 5
    assert taken_by(ran) < 0.7 * taken_by(written)
    assert ran.facts["steps"] == written.facts["steps"]


@pytest.mark.cuda
@pytest.mark.jax_cuda
@pytest.mark.timed
def test_a_card_takes_less_memory_and_trains_alike(run_child: Run, write_script: Write) -> None:
    script = write_script(SCRIPT)
    given = {"argv": ("4",), "window": WHOLE, "device": "cuda:0", "fresh": True}
    written = run_child(script, **given)
    ran = run_child(script, {"checkpointing": True}, knowledge=KNOWN, **given)
    assert written.returncode == ran.returncode == 0, ran.output
    assert ran.evidence("checkpointing") == "verified", ran.of("knob")
    assert losses_of(ran) == pytest.approx(losses_of(written), rel=1e-3) and len(losses_of(ran)) == 5
    assert taken_by(ran) < 0.8 * taken_by(written)


@pytest.mark.slow  # of another knob: test_jax_several_steps.py; evidence of this one: above
def test_an_applied_run_tells_that_it_is_in_effect(run_child: Run, write_script: Write) -> None:
    ran = run_child(write_script(SCRIPT), {"checkpointing": True}, argv=("25",), mode="apply")
    assert ran.returncode == 0, ran.output
    assert "autotune: after 20 steps in effect: checkpointing" in ran.output.splitlines()


DATA = """
import jax, jax.numpy as jnp, numpy as np, optax
data = np.random.default_rng(0)
X = data.normal(size=(240, 64)).astype("float32")
Y = (X @ data.normal(size=(64, 3)).astype("float32")).argmax(1)
def batches():
    for start in range(0, 240, 30):
        yield X[start : start + 30], Y[start : start + 30]
def told(loss, model):
    print("loss", float(loss))
    for leaf in jax.tree.leaves(model):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            print("loss", float(jnp.abs(leaf).sum()))
"""
LIBRARIES = {
    "linen": DATA + """
from flax import linen as nn
class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for _ in range(6):
            x = nn.BatchNorm(use_running_average=not train)(nn.gelu(nn.Dense(64)(x)))
            x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(3)(x)
net, optimizer, key = Net(), optax.adamw(1e-3), jax.random.key(1)
made = net.init(jax.random.key(0), X[:1], False)
state = made["params"], made["batch_stats"], optimizer.init(made["params"])
@jax.jit
def step(state, x, y, key):
    params, statistics, held = state
    def loss_of(params):
        logits, updates = net.apply(
            {"params": params, "batch_stats": statistics}, x, True, mutable=["batch_stats"], rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), updates
    (loss, updates), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
    changes, held = optimizer.update(gradients, held, params)
    return (optax.apply_updates(params, changes), updates["batch_stats"], held), loss
for number, (x, y) in enumerate(batches()):
    state, loss = step(state, x, y, jax.random.fold_in(key, number))
told(loss, state)
""",
    "nnx": DATA + """
from flax import nnx
class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(64, 64, rngs=rngs) for _ in range(6)])
        self.norms = nnx.List([nnx.BatchNorm(64, rngs=rngs) for _ in range(6)])
        self.dropout, self.last = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(64, 3, rngs=rngs)
    def __call__(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = self.dropout(norm(nnx.gelu(layer(x))))
        return self.last(x)
model = Net(nnx.Rngs(0, dropout=1))
optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
@nnx.jit
def step(model, optimizer, x, y):
    def loss_of(model, x):
        logits = model(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits
    (loss, logits), gradients = nnx.value_and_grad(loss_of, has_aux=True)(model, x)
    optimizer.update(model, gradients)
    return loss + 0 * logits.sum()
for x, y in batches():
    loss = step(model, optimizer, x, y)
told(loss, nnx.state((model, optimizer)))
""",
    "equinox": DATA + """
import equinox as eqx
class Net(eqx.Module):
    layers: list
    dropout: eqx.nn.Dropout
    def __init__(self, key):
        keys = jax.random.split(key, 7)
        self.layers = [eqx.nn.Linear(64, 64 if number < 6 else 3, key=keys[number]) for number in range(7)]
        self.dropout = eqx.nn.Dropout(0.2)
    def __call__(self, x, key):
        for layer in self.layers[:-1]:
            key, drawn = jax.random.split(key)
            x = self.dropout(jax.nn.gelu(layer(x)), key=drawn)
        return self.layers[-1](x)
model, optimizer = Net(jax.random.key(0)), optax.adamw(1e-3)
held = optimizer.init(eqx.filter(model, eqx.is_array))
@eqx.filter_jit
def step(model, held, x, y, key):
    def loss_of(model):
        logits = jax.vmap(model)(x, jax.random.split(key, len(x)))
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), jax.nn.gelu
    (loss, _), gradients = eqx.filter_value_and_grad(loss_of, has_aux=True)(model)
    updates, held = optimizer.update(gradients, held, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), held, loss
for number, (x, y) in enumerate(batches()):
    model, held, loss = step(model, held, x, y, jax.random.key(number))
told(loss, eqx.filter((model, held), eqx.is_array))
""",
}  # fmt: skip


@pytest.mark.jax
@pytest.mark.parametrize("name", LIBRARIES)
def test_states_statistics_and_dropout_of_libraries_are_the_same(
    name: str, run_child: Run, write_script: Write
) -> None:
    script = write_script(LIBRARIES[name])
    written = run_child(script, window=WHOLE)
    ran = run_child(script, {"checkpointing": True}, window=WHOLE, knowledge=KNOWN)
    assert ran.returncode == 0, ran.output
    assert ran.evidence("checkpointing") == "verified", ran.of("knob")
    assert losses_of(ran) == pytest.approx(losses_of(written), rel=2e-4) and len(losses_of(ran)) > 40
