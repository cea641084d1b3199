"""What a loop of JAX's goes on compiling after its first steps."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.jax_here import jax
from support.jax_trial import batches, descend, loss_of, watched, weights

jnp = jax.numpy
FRESH = itertools.count(3)
"""Lengths that nothing in this process was compiled for."""
STEPS = 40


def told(at: range, many: int) -> list[str]:
    """Remarks on a loop that after these steps computes on so many arrays of lengths that it never had before."""

    with watched() as trial:

        @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
        def update(params: Any, x: Any, y: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
            return descend(params, gradients), loss

        params = weights()
        for number, (x, y) in enumerate(batches(20, STEPS)):
            params, _ = update(params, x, y)
            for length in itertools.islice(FRESH, many if number in at else 0):
                jnp.zeros(length) + 1
        facts = trial.end()
    assert facts["retraces"] == 0
    return [remark for remark in facts["remarks"] if "XLA compiled" in remark]


@pytest.mark.slow  # 5 s beside three others
def test_a_loop_that_goes_on_compiling_is_told_so() -> None:
    (remark,) = told(range(STEPS), 1)
    assert remark.endswith("what the script computes beside its step has other shapes each time")


@pytest.mark.slow
def test_what_is_compiled_once_is_no_sign_of_it() -> None:
    """The first evaluation of a script, say, and a shorter batch at an epoch's end."""
    assert told(range(25, 26), 20) == []
