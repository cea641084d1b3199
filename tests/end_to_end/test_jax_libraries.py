"""Loops of optax and Flax, in a real child: where an update ends a step, and what it trains on.

They run in the environment of `make test-jax`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.jax_scripts import linen_step

pytestmark = pytest.mark.jax
Run = Callable[..., Any]
Write = Callable[..., Path]
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}

HEAD = """
import jax, jax.numpy as jnp, numpy as np, optax
data = np.random.default_rng(0)
X = data.normal(size=(100, 8)).astype("float32")
Y = (X @ data.normal(size=(8, 3)).astype("float32")).argmax(1)
trained = 0
def batches():
    for epoch in range(5):
        for start in range(0, 100, 30):
            yield X[start : start + 30], Y[start : start + 30]
"""
LINEN = linen_step(16) + """
net = Net()
made = net.init(jax.random.key(0), X[:1], False)
state = State.create(
    apply_fn=net.apply, params=made["params"], tx=optax.adamw(1e-2), batch_stats=made["batch_stats"],
    key=jax.random.key(1))
for x, y in batches():
    state, metrics = train_step(state, {"x": x, "y": y})
    trained += len(x)
    print("loss", float(metrics["loss"]).hex())
"""
APART = """
def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["w"] + params["b"], y).mean()
params = {"w": jnp.zeros((8, 3)), "b": jnp.zeros(3)}
optimizer = optax.adam(1e-2)
held = optimizer.init(params)
gradient = GRADIENT
for x, y in batches():
    loss, gradients = gradient(params, x, y)
    updates, held = optimizer.update(gradients, held, params)
    params = optax.apply_updates(params, updates)
    trained += len(x)
    print("loss", float(loss).hex())
"""
NNX = """
from flax import nnx
class Net(nnx.Module):
    def __init__(self, rngs):
        self.first, self.norm = nnx.Linear(8, 16, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)
        self.last = nnx.Linear(16, 3, rngs=rngs)
    def __call__(self, x):
        return self.last(nnx.relu(self.norm(self.first(x))))
model = Net(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
@nnx.jit
def train_step(model, optimizer, x, y):
    def loss_of(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss
for x, y in batches():
    loss = train_step(model, optimizer, x, y)
    trained += len(x)
    print("loss", float(loss).hex())
"""
LINEAR = """
def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["w"] + params["b"], y).mean()
params = {"w": jnp.zeros((8, 3)), "b": jnp.zeros(3)}
"""
PARTS = LINEAR + """
optimizer = optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2)
held = optimizer.init(params)
DECORATED
def update(params, held, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    updates, held = optimizer.update(gradients, held, params)
    return optax.apply_updates(params, updates), held, loss
for x, y in batches():
    params, held, loss = update(params, held, x, y)
    trained += len(x)
    print("loss", float(loss).hex())
assert int(held.gradient_step) == 10
"""
PARTS_APPLIED = LINEAR + """
optimizer = optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2)
held = optimizer.init(params)
gradient = jax.jit(jax.grad(loss_of))
@jax.jit
def apply(params, held, gradients):
    updates, held = optimizer.update(gradients, held, params)
    return optax.apply_updates(params, updates), held
for x, y in batches():
    params, held = apply(params, held, gradient(params, x, y))
    trained += len(x)
"""
SUMMED = LINEAR + """
optimizer = optax.adam(1e-2)
held = optimizer.init(params)
@jax.jit
def accumulate(params, summed, x, y):
    return jax.tree.map(jnp.add, summed, jax.grad(loss_of)(params, x, y))
@jax.jit
def apply(params, held, summed):
    updates, held = optimizer.update(summed, held, params)
    return optax.apply_updates(params, updates), held
summed = jax.tree.map(jnp.zeros_like, params)
for number, (x, y) in enumerate(batches()):
    summed = accumulate(params, summed, x, y)
    if number % 4 == 3:
        params, held = apply(params, held, summed)
        summed = jax.tree.map(jnp.zeros_like, params)
    trained += len(x)
"""
TWICE = """
from flax import linen as nn
from flax.training import train_state
net = nn.Dense(3)
state = train_state.TrainState.create(
    apply_fn=net.apply, params=net.init(jax.random.key(0), X[:1])["params"], tx=optax.sgd(1e-2))
@jax.jit
def apply_model(state, x, y):
    def loss_of(params):
        logits = state.apply_fn({"params": params}, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits
    (loss, logits), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return gradients, loss, jnp.mean(jnp.argmax(logits, -1) == y)
@jax.jit
def update_model(state, gradients):
    return state.apply_gradients(grads=gradients)
apply_model(state, X[:50], Y[:50])
for number, (x, y) in enumerate(batches()):
    gradients, loss, accuracy = apply_model(state, x, y)
    state = update_model(state, gradients)
    trained += len(x)
    print("loss", float(loss).hex())
    if number % 4 == 3:
        _, _, accuracy = apply_model(state, X[:50], Y[:50])
"""
LINEAR = """
def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["w"] + params["b"], y).mean()
params = {"w": jnp.zeros((8, 3)), "b": jnp.zeros(3)}
optimizer = optax.sgd(1e-2)
held = optimizer.init(params)
"""
SHARPNESS = LINEAR + """
gradient = jax.jit(jax.value_and_grad(loss_of))
for x, y in batches():
    loss, gradients = gradient(params, x, y)
    near = jax.tree_util.tree_map(lambda p, g: p + 0.05 * g / optax.global_norm(gradients), params, gradients)
    gradients = gradient(near, x, y)[1]
    updates, held = optimizer.update(gradients, held, params)
    params = optax.apply_updates(params, updates)
    trained += len(x)
"""
IN_PARTS_BY_HAND = LINEAR + """
gradient = jax.jit(jax.grad(loss_of))
for x, y in batches():
    parts = [gradient(params, x[start : start + 5], y[start : start + 5]) for start in range(0, len(x), 5)]
    updates, held = optimizer.update(jax.tree_util.tree_map(lambda *parts: sum(parts), *parts), held, params)
    params = optax.apply_updates(params, updates)
    trained += len(x)
"""
AROUND = """
from flax import linen as nn
from flax.training import train_state
net = nn.Dense(3)
state = train_state.TrainState.create(
    apply_fn=net.apply, params=net.init(jax.random.key(0), X[:1])["params"], tx=optax.adam(1e-2))
def train_step(state, batch, key):
    def loss_of(params):
        logits = state.apply_fn({"params": params}, batch["x"] + 0.1 * jax.random.normal(key, batch["x"].shape))
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
    return state.apply_gradients(grads=jax.grad(loss_of)(state.params))
key = jax.random.key(1)
for x, y in batches():
    key, drawn = jax.random.split(key)
    state = train_step(state, {"x": x, "y": y}, drawn)
    trained += len(x)
"""
CHUNKS = """
def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["w"] + params["b"], y).mean()
optimizer = optax.adam(1e-2)
def step(state, batch):
    params, held = state
    loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
    updates, held = optimizer.update(gradients, held, params)
    return (optax.apply_updates(params, updates), held), loss
several = jax.jit(lambda state, xs, ys: jax.lax.scan(step, state, (xs, ys)))
params = {"w": jnp.zeros((8, 3)), "b": jnp.zeros(3)}
state = params, optimizer.init(params)
for length in (2, 4, 2, 4, 4, 4):
    state, losses = several(state, X[: 20 * length].reshape(length, 20, 8), Y[: 20 * length].reshape(length, 20))
"""
END = """
print("trained on", trained)
"""
SCRIPTS = {
    "linen": LINEN,
    "optax, its gradient jitted": APART.replace("GRADIENT", "jax.jit(jax.value_and_grad(loss_of))"),
    "optax, nothing jitted": APART.replace("GRADIENT", "jax.value_and_grad(loss_of)"),
    "nnx": NNX,
}


SEVERAL = {
    "parts, compiled": (PARTS.replace("DECORATED", "@jax.jit"), ("samples", 10, 500)),
    "parts, nothing jitted": (PARTS.replace("DECORATED", ""), ("samples", 10, 500)),
    "parts, applied by another function": (PARTS_APPLIED, ("samples", 10, 500)),
    "parts, summed by a compiled function": (SUMMED, ("samples", 5, 500)),
    "gradients for their value": (TWICE, ("samples", 20, 500)),
    "a batch around the loss": (AROUND, ("samples", 20, 500)),
    "two gradients of a batch": (SHARPNESS, ("samples", 21, 530)),  # no update is seen before the first one
    "gradients of a batch's parts": (IN_PARTS_BY_HAND, ("samples", 20, 500)),
    "chunks of several lengths": (CHUNKS, ("steps", 20, 0)),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_an_optimizer_update_is_a_step(kind: str, run_child: Run, write_script: Write) -> None:
    text, counted = SEVERAL[kind]
    ran = run_child(write_script(HEAD + text + END), window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert [note["text"] for note in ran.of("note")] == []
    assert (ran.facts["unit"], ran.facts["steps"], ran.facts["samples"]) == counted, ran.facts["remarks"]


UNKNOWN = """
def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["w"] + params["b"], y).mean()
params = {"w": jnp.zeros((8, 3)), "b": jnp.zeros(3)}
optimizer = optax.MultiSteps(optax.sgd(1e-2), every_k_schedule=lambda step: jnp.minimum(step + 1, 3))
held = optimizer.init(params)
@jax.jit
def update(params, held, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    def apply(params, held):
        updates, held = optimizer.update(gradients, held, params)
        return optax.apply_updates(params, updates), held
    return *jax.lax.cond(loss < 9.0, apply, lambda params, held: (params, held), params, held), loss
for x, y in batches():
    params, held, loss = update(params, held, x, y)
"""


def test_updates_that_nobody_can_count_are_said(run_child: Run, write_script: Write) -> None:
    """In a branch, and of a number of batches that changes: each batch is a step, and the samples are what they are."""
    ran = run_child(write_script(HEAD + UNKNOWN + END), window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert (ran.facts["unit"], ran.facts["steps"], ran.facts["samples"]) == ("samples", 20, 500)
    said = " ".join(ran.facts["remarks"])
    assert "an update is in a branch (cond, switch)" in said and "optax.MultiSteps is given a function" in said


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_loop_is_counted_and_trains_as_under_plain_python(kind: str, run_child: Run, write_script: Write) -> None:
    script = write_script(HEAD + SCRIPTS[kind] + END)
    plain = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=240, check=True,
    )  # fmt: skip
    ran = run_child(script, window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert [note["text"] for note in ran.of("note")] == []
    found = (ran.facts["framework"], ran.facts["unit"], ran.facts["steps"], ran.facts["samples"])
    assert found == ("jax", "samples", 20, 500), ran.facts["remarks"]
    losses = re.findall(r"^loss (\S+)$", plain.stdout, re.MULTILINE)
    assert re.findall(r"^loss (\S+)$", ran.output, re.MULTILINE) == losses
    told = {float(record["value"]).hex() for record in ran.of("loss")}
    assert len(told) > 10 and told <= {float.fromhex(loss).hex() for loss in losses}


@pytest.mark.parametrize(("name", "tensors"), [("linen", 6), ("nnx", 6), ("optax, its gradient jitted", 2)])
def test_a_screen_sees_how_far_weights_move_and_nothing_else(
    name: str, tensors: int, run_child: Run, write_script: Write
) -> None:
    """Of running means and Adam's moments, which move as well, nothing."""
    ran = run_child(write_script(HEAD + SCRIPTS[name] + END), window=WHOLE, seed=1)
    assert ran.returncode == 0, ran.output
    (told,) = ran.of("weights")
    assert told["steps"] >= 18 and told["path"] > 0 and len(told["changes"]) == tensors
    assert all(any(change for change in each) for each in told["changes"])
