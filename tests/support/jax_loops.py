"""What scripts share whose loops of JAX's another library's loaders feed, and what is read of them."""

from __future__ import annotations

import re
from typing import Any

WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}
"""A window that holds all that such a script trains."""
UPDATE = """
import jax, jax.numpy as jnp, numpy as np

def loss_of(params, x, y):
    logits = x @ params["w"] + params["b"]
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])

@jax.jit
def update(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, gradients), loss

def weights():
    return {"w": jnp.zeros((8, 2)), "b": jnp.zeros(2)}
"""


def known_by(ran: Any) -> dict[str, Any]:
    """What a study knows of the script by its first trial."""
    names = ("training_loaders", "as_written", "loaders", "input_plan", "cache_bytes")
    return {"framework": "jax", "unit": "samples", **{name: ran.facts[name] for name in names}}


def losses(ran: Any) -> list[str]:
    """Those that the script prints."""
    return re.findall(r"^loss (\S+)$", ran.output, re.MULTILINE)
