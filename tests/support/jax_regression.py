"""A regression in JAX as the text of scripts, and what one ends with: by plain Python, or within a trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL = """
import functools
import jax, jax.numpy as jnp, numpy as np
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
Y = X.sum(1)
params, kept = {"w": jnp.zeros(4), "b": [jnp.zeros(())]}, []

def loss_of(params, x, y):
    return ((x @ params["w"] + params["b"][0] - y) ** 2).mean()

def descend(params, gradients):
    return jax.tree_util.tree_map(lambda p, g: p - 0.01 * g, params, gradients)

def plain(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss

step = jax.jit(plain)
"""
"""Behind the script's ``ROWS``; its batches are its own."""
LOOP = """
for x, y in batches():
    params, loss = step(params, x, y)
"""
IN_A_LIBRARY = """
made = "step = jax.jit(lambda nothing, *given: plain(*given), donate_argnums=0)"
exec(compile(made, np.__file__, "exec"))
"""
"""As Equinox' ``filter_jit`` does it: what the first argument holds is donated, which is nothing by default."""
_END = "\nend = [np.array(leaf) for leaf in jax.tree_util.tree_leaves((params, kept, loss))]\n"


def written(text: str, folder: Path) -> Callable[[], list[Any]]:
    """Writes the script. What it returns runs it as the main one, and gives the arrays that it ends with: parameters,
    what it ``kept``, and the last ``loss``.
    """
    path = folder / "train.py"
    path.write_text(text + _END)
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)

    def run() -> list[Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(code, names)
        return list(names["end"])

    return run
