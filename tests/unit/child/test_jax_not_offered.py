"""Why some settings of JAX's are no knobs on a processor: what they don't change there (search_spaces/README.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.jax_here import jax

jnp = jax.numpy
pytestmark = pytest.mark.slow  # they are JAX's doing: nothing of ours could break them


@pytest.mark.parametrize("precision", ["bfloat16", "tensorfloat32", "highest"])
def test_the_precision_of_products_changes_no_bit_on_a_processor(precision: str) -> None:
    first, second = (jax.random.normal(key, (256, 256)) for key in jax.random.split(jax.random.PRNGKey(0)))
    default = jax.jit(lambda a, b: a @ b)(first, second)
    with jax.default_matmul_precision(precision):
        chosen = jax.jit(lambda a, b: a @ b)(first, second)
    assert (chosen == default).all()


def test_a_checkpoint_around_all_that_is_differentiated_saves_no_memory() -> None:
    params = [jax.random.normal(jax.random.PRNGKey(0), (128, 128)) * 0.05] * 8
    x = jnp.ones((1024, 128))

    def loss_of(params: Any, x: Any) -> Any:
        for weights in params:
            x = jnp.tanh(x @ weights)
        return (x**2).mean()

    def temporary_bytes(of: Callable[..., Any]) -> int:
        compiled = jax.jit(jax.grad(of)).lower(params, x).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    assert temporary_bytes(jax.checkpoint(loss_of)) >= temporary_bytes(loss_of) > 0
