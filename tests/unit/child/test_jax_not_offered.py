"""Why some settings of JAX's are no knobs on a processor: what they don't change there (search_spaces/README.md)."""

from __future__ import annotations

import functools
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


@pytest.mark.parametrize("policy", [None, "nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable"])
@pytest.mark.parametrize("of", ["all", "each layer"])
def test_a_checkpoint_around_what_is_differentiated_saves_no_memory(policy: str | None, of: str) -> None:
    """Nor does one around each layer: XLA takes its barriers away on a processor, and finds the same twice."""
    chosen = getattr(jax.checkpoint_policies, policy) if policy else None

    def checkpointed(function: Callable[..., Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = jax.checkpoint(function, policy=chosen)
        return made

    params = [jax.random.normal(jax.random.PRNGKey(0), (128, 128)) * 0.05] * 8
    x = jnp.ones((1024, 128))

    def layer(weights: Any, x: Any) -> Any:
        return jnp.tanh(x @ weights)

    def loss_of(params: Any, x: Any, layer: Callable[..., Any] = layer) -> Any:
        for weights in params:
            x = layer(weights, x)
        return (x**2).mean()

    def temporary_bytes(of: Callable[..., Any]) -> int:
        compiled = jax.jit(jax.grad(of)).lower(params, x).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    parts = functools.partial(loss_of, layer=checkpointed(layer))
    with_it = temporary_bytes(checkpointed(loss_of) if of == "all" else parts)
    assert with_it >= temporary_bytes(loss_of) > 0
