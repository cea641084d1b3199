"""Training steps that compute their new state in the memory of the old one, in a real child."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.jax_scripts import SCRIPTS, linen_step

Run = Callable[..., Any]
Write = Callable[..., Path]
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}
KNOWN = {"framework": "jax", "unit": "samples", "as_written": {"donation": False}}
WIDE = re.sub(r"\b16\b", "40000", SCRIPTS["jitted"]).replace("trained, done_with", "kept = []\ntrained, done_with", 1)
"""Its state takes 1.9 MB."""


def losses_of(ran: Any) -> list[str]:
    """Those that the script printed, to the last bit."""
    return re.findall(r"^loss (\S+)$", ran.output, re.MULTILINE)


def test_donation_is_offered_verified_and_changes_no_loss(run_child: Run, write_script: Write) -> None:
    script = write_script(WIDE)
    written = run_child(script, argv=("12",), window=WHOLE)
    assert written.facts["as_written"]["donation"] is False, written.facts["left_out"]
    ran = run_child(script, {"donation": True}, argv=("12",), window=WHOLE, knowledge=KNOWN)
    assert ran.returncode == 0, ran.output
    assert ran.evidence("donation") == "verified", ran.of("knob")
    assert [note["text"] for note in ran.of("note")] == []
    assert losses_of(ran) == losses_of(written) and len(losses_of(ran)) == 12
    assert (ran.facts["steps"], ran.facts["samples"]) == (written.facts["steps"], written.facts["samples"])


@pytest.mark.slow  # unit/child/test_jax_donated_state.py, in one process
@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        pytest.param("trained += len(x)", "trained += len(x); kept.append(params)", "in another place", id="kept"),
        pytest.param("raise\n", "print(params['b1'][0])\n    raise\n", "caught where", id="caught"),
    ],
)
def test_a_script_that_may_read_its_state_again_isnt_offered_it(
    before: str, after: str, says: str, run_child: Run, write_script: Write
) -> None:
    script = write_script(WIDE.replace(before, after))
    written = run_child(script, argv=("8",), window=WHOLE)
    assert says in written.facts["left_out"]["donation"]
    ran = run_child(script, {"donation": True}, argv=("8",), window=WHOLE, knowledge=KNOWN)
    assert ran.evidence("donation") == "contradicted", ran.of("knob")
    assert ran.returncode == 0 and losses_of(ran) == losses_of(written)


SKIPS = """
import contextlib, jax, jax.numpy as jnp, numpy as np
from jax.experimental import io_callback
jax.config.update("jax_cpu_enable_async_dispatch", False)
@contextlib.contextmanager
def skipping():
    try:
        yield
    except Exception:
        print("skipped")
def check(number):
    if number % 7 == 6:
        raise ValueError("a broken batch")
    return np.float32(0)
@jax.jit
def step(weights, x, number):
    checked = io_callback(check, jax.ShapeDtypeStruct((), jnp.float32), number)
    loss, gradient = jax.value_and_grad(lambda w: ((x @ w - 1) ** 2).mean())(weights)
    return weights - 1e-3 * gradient + checked, loss
weights, draw = jnp.zeros((1024, 512)), np.random.default_rng(0)
for number in range(25):
    x = draw.normal(size=(8, 1024)).astype("float32")
    with skipping():
        weights, loss = step(weights, x, number)
        print("loss", float(loss).hex())
print("loss", float(weights.sum()).hex())
"""


@pytest.mark.slow  # unit/child/test_jax_donated_state.py, in one process
def test_a_step_whose_error_a_with_stops_keeps_its_state(run_child: Run, write_script: Write) -> None:
    """It was donated, and gone: no later step could be taken."""
    script = write_script(SKIPS)
    written = run_child(script, window=WHOLE)
    ran = run_child(script, {"donation": True}, window=WHOLE, knowledge=KNOWN)
    assert ran.returncode == 0, ran.output
    assert ran.output.count("skipped") == 3 and len(losses_of(written)) == 23
    assert losses_of(ran) == losses_of(written)
    assert "caught where" in written.facts["left_out"]["donation"]


@pytest.mark.slow  # of another knob: test_jax_several_steps.py; evidence of this one: above
def test_an_applied_run_tells_that_it_is_in_effect(run_child: Run, write_script: Write) -> None:
    ran = run_child(write_script(WIDE), {"donation": True}, argv=("25",), mode="apply")
    assert ran.returncode == 0, ran.output
    assert "autotune: after 20 steps in effect: donation" in ran.output.splitlines()


LINEN = """
import jax, jax.numpy as jnp, numpy as np, optax
data = np.random.default_rng(0)
X = data.normal(size=(240, 64)).astype("float32")
Y = (X @ data.normal(size=(64, 3)).astype("float32")).argmax(1)
""" + linen_step(2000) + """
@jax.jit
def eval_step(state, x, y):
    logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, x, False)
    return {"accuracy": (logits.argmax(1) == y).mean()}
def train_epoch(state):
    for start in range(0, 240, 30):
        state, metrics = train_step(state, {"x": X[start : start + 30], "y": Y[start : start + 30]})
        print("loss", float(metrics["loss"]).hex())
    return state
def main():
    net = Net()
    made = net.init(jax.random.key(0), X[:1], False)
    state = State.create(
        apply_fn=net.apply, params=made["params"], tx=optax.adamw(1e-2), batch_stats=made["batch_stats"],
        key=jax.random.key(1))
    best = 0.0
    for epoch in range(4):
        state = train_epoch(state)
        accuracy = float(eval_step(state, X, Y)["accuracy"])
        if accuracy > best:
            best, best_state = accuracy, state
    print("loss", float(jax.tree.reduce(lambda a, b: a + b.sum(), best_state.params, 0.0)).hex())
main()
"""
PURE = """
import jax, jax.numpy as jnp, numpy as np, optax
data = np.random.default_rng(0)
X = data.normal(size=(240, 64)).astype("float32")
Y = (X @ data.normal(size=(64, 3)).astype("float32")).argmax(1)
params = {"w1": 0.1 * jax.random.normal(jax.random.key(0), (64, 2000)), "w2": jnp.zeros((2000, 3))}
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(1e-2, 1e-3, 40)))
opt_state = optimizer.init(params)
def loss_of(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(jax.nn.relu(x @ params["w1"]) @ params["w2"], y).mean()
@jax.jit
def step(params, opt_state, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss
average = params
for epoch in range(4):
    for start in range(0, 240, 30):
        params, opt_state, loss = step(params, opt_state, X[start : start + 30], Y[start : start + 30])
        average = optax.incremental_update(params, average, 0.1)
        print("loss", float(loss).hex())
print("loss", float(average["w1"].sum()).hex())
"""


@pytest.mark.jax
@pytest.mark.parametrize("kind", ["linen", "pure"])
def test_states_of_flax_and_optax_are_donated(kind: str, run_child: Run, write_script: Write) -> None:
    """Also where the best one is kept, and an average of them."""
    script = write_script({"linen": LINEN, "pure": PURE}[kind])
    written = run_child(script, window=WHOLE)
    assert written.facts["as_written"]["donation"] is False, written.facts["left_out"]
    ran = run_child(script, {"donation": True}, window=WHOLE, knowledge=KNOWN)
    assert ran.returncode == 0, ran.output
    assert ran.evidence("donation") == "verified", ran.of("knob")
    assert losses_of(ran) == losses_of(written) and len(losses_of(ran)) == 33
