"""Several steps of JAX in one call, in a real child."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
Write = Callable[..., Path]
SCREEN = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 0, "block_s": 0.0}
KNOWN = {"framework": "jax", "unit": "samples", "as_written": {"steps_per_call": 1}}
SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
data = np.random.default_rng(0)
X = data.normal(size=(400, 8)).astype("float32")
params, losses = {"w": jnp.ones((8, 8)), "b": jnp.zeros(8)}, []
@jax.jit
def step(params, x):
    def loss_of(params):
        return ((jnp.tanh(x @ params["w"] + params["b"]) - x) ** 2).mean()
    loss, gradients = jax.value_and_grad(loss_of)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss
for _ in range(3):
    for start in range(0, 400, 20):
        params, loss = step(params, X[start : start + 20])
        losses.append(loss)
    print("loss", float(sum(losses)))
print("loss", float(params["w"].sum()))
"""


def losses_of(ran: Any) -> list[float]:
    """Those that the script printed."""
    return list(map(float, re.findall(r"^loss (\S+)$", ran.output, re.MULTILINE)))


@pytest.mark.slow  # 7 s beside three others
def test_steps_run_together_in_a_trial_and_in_an_applied_run(run_child: Run, write_script: Write) -> None:
    script = write_script(SCRIPT)
    written = run_child(script, window={**SCREEN, "block_s": 0.25})
    assert written.facts["as_written"]["steps_per_call"] == 1, written.facts["left_out"]
    ran = run_child(script, {"steps_per_call": 4}, window=SCREEN, knowledge=KNOWN)
    assert ran.returncode == 0, ran.output
    assert ran.evidence("steps_per_call") == "verified", ran.of("knob")
    assert [note["text"] for note in ran.of("note")] == []
    applied = run_child(script, {"steps_per_call": 4}, mode="apply")
    assert applied.returncode == 0, applied.output
    assert "autotune: after 20 steps in effect: steps_per_call" in applied.output.splitlines()
    own = losses_of(written)
    assert len(own) == 4
    for other in (ran, applied):
        assert losses_of(other) == pytest.approx(own, rel=1e-5)


def test_what_waits_as_a_validation_begins_counts_with_its_samples(run_child: Run, write_script: Write) -> None:
    """Of ten steps between two validations the last two waited for two more: their samples were forgotten."""
    score = "score = jax.jit(lambda params, x: jnp.tanh(x @ params['w']).mean())\nfor _ in range(3):"
    evaluated = "losses.append(loss)\n        if start % 200 == 180:\n            score(params, X)"
    script = write_script(SCRIPT.replace("for _ in range(3):", score).replace("losses.append(loss)", evaluated))
    ran = run_child(script, {"steps_per_call": 4}, window=SCREEN, knowledge=KNOWN)
    assert ran.returncode == 0, ran.output
    assert ran.evidence("steps_per_call") == "verified", ran.of("knob")
    assert ran.facts["set_apart"] == "all"
    assert ran.facts["samples"] == 3 * 400
    blocks = ran.of("block")
    assert sum(block["samples"] for block in blocks) == 20 * sum(block["steps"] for block in blocks)
