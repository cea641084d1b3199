"""Evaluations operation by operation, as the examples of JAX's have them: set apart once the same data come again."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from support.jax_here import jax
from support.jax_trial import Trial, X, batches, descend, loss_of, watched, weights

jnp, lax = jax.numpy, jax.lax
MADE = numpy.random.default_rng(1)
WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "dot": lambda x, w: jnp.dot(x, w) + 1, "an operator": lambda x, w: x @ w,
    "an operator on JAX's": lambda x, w: jnp.asarray(x) @ w, "einsum": lambda x, w: jnp.einsum("ij,j->i", x, w),
    "mapped": lambda x, w: jax.vmap(jnp.dot, in_axes=(None, 0))(w, x),
    "lax": lambda x, w: lax.dot_general(jnp.asarray(x), w, (((1,), (0,)), ((), ()))),
}  # fmt: skip


@pytest.fixture
def trial() -> Iterator[Trial]:
    """JAX under the watch."""
    with watched() as made:
        yield made


def train(trial: Trial, evaluate: Callable[[Any], Any], *, every: int = 12, is_compiled: bool = True) -> int:
    """Steps of a loop that evaluates so often; the blocks that were set apart."""

    def step(params: Any, x: Any, y: Any) -> Any:
        return descend(params, jax.grad(loss_of)(params, x, y))

    step, params = jax.jit(step) if is_compiled else step, weights()
    for number, (x, y) in enumerate(batches(20, 60)):
        params = step(params, x, y)
        trial.trained(1, 20)
        if number % every == every - 1:
            float(evaluate(params["w"]).sum())
    late = 0 if is_compiled else 1
    assert trial.is_counted(late=late, late_rows=20 * late)
    facts = trial.end()
    said = [remark for remark in facts["remarks"] if remark.startswith("what is computed at test_jax_eager.py:")]
    assert bool(said) == (trial.set_apart() > 0)
    return trial.set_apart()


@pytest.mark.parametrize("way", WAYS)
def test_the_second_evaluation_of_the_same_data_is_set_apart(trial: Trial, way: str) -> None:
    """And each one after it, the one behind the last step included."""
    assert train(trial, lambda w: WAYS[way](X, w)) == 4


def test_it_is_where_nothing_is_compiled(trial: Trial) -> None:
    assert train(trial, lambda w: X @ w, is_compiled=False) == 4


def test_a_policy_is_part_of_the_loop(trial: Trial) -> None:
    """It is asked about fewer rows than are trained on."""
    assert train(trial, lambda w: X[:8] @ w) == 0


def test_other_data_are_part_of_the_loop(trial: Trial) -> None:
    assert train(trial, lambda w: MADE.normal(size=(240, 4)).astype("float32") @ w) == 0


def test_what_is_part_of_each_step_is_part_of_the_loop(trial: Trial) -> None:
    assert train(trial, lambda w: X @ w, every=1) == 0


def test_products_of_nothing_that_is_trained_are_part_of_the_loop(trial: Trial) -> None:
    assert train(trial, lambda w: X.T @ jnp.ones((240, 3))) == 0


@pytest.mark.usefixtures("trial")
def test_a_function_that_is_told_of_is_as_jax_has_it() -> None:
    assert pickle.loads(pickle.dumps(jnp.dot)) is jnp.dot and copy.copy(jnp.dot) is jnp.dot
    assert jnp.dot.__name__ == "dot" and "PjitFunction" in repr(jnp.dot)
    assert jnp.dot.lower(X, jnp.ones(4)).compile() is not None
    assert (jax.jit(jnp.dot)(X, jnp.ones(4)) == jnp.dot(X, jnp.ones(4))).all()
    assert (jax.vmap(jnp.dot)(X, X) == jax.vmap(lambda a, b: a @ b)(X, X)).all()
