"""Gradients that several compiled functions sum, and what is set apart beside calls of many steps, by JAX alone."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from support.jax_here import jax
from support.jax_trial import Trial, X, Y, batches, descend, loss_of, watched, weights

jnp, lax = jax.numpy, jax.lax


@pytest.fixture
def trial() -> Iterator[Trial]:
    """JAX under the watch."""
    with watched() as made:
        yield made


def updating(trial: Trial, every: int = 0) -> Any:
    """A compiled function that applies an update, as optax' functions tell of it."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def apply(params: Any, gradients: Any) -> Any:
        steps: Any = trial.adapter.steps
        if every:
            steps.multi_step(every)
        return steps.update(lambda: descend(params, gradients))

    return apply


def zeros(params: Any) -> Any:
    return jax.tree_util.tree_map(jnp.zeros_like, params)


@pytest.mark.parametrize("donated", [(), (1,)])
@pytest.mark.parametrize("gives_loss", [False, True])
def test_a_sum_that_a_compiled_function_adds_to_is_of_all_its_batches(
    trial: Trial, donated: tuple[int, ...], gives_loss: bool
) -> None:
    """Only the last one's result is given to the update: samples were told a quarter of what they were."""

    @functools.partial(jax.jit, donate_argnums=donated)
    def add(params: Any, summed: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        summed = jax.tree_util.tree_map(jnp.add, summed, gradients)
        return (loss, summed) if gives_loss else summed

    params, apply = weights(), updating(trial)
    for _ in range(10):
        summed = zeros(params)
        for x, y in batches(20, 4):
            given = add(params, summed, x, y)
            summed = given[1] if gives_loss else given
        params = apply(params, summed)
        trial.trained(1, 80)
    assert trial.is_counted()


def test_an_update_of_several_batches_that_is_compiled_by_itself_is_of_all_of_them(trial: Trial) -> None:
    """As ``optax.MultiSteps`` is: it keeps the gradients, and the first three times changes nothing."""
    gradient, apply, params = jax.jit(jax.grad(loss_of)), updating(trial, every=4), weights()
    for number, (x, y) in enumerate(batches(20, 40)):
        params = apply(params, gradient(params, x, y))
        trial.trained(number % 4 == 3, 20)
    assert trial.is_counted()


def test_parts_of_a_batch_before_the_one_that_updates_count_with_it(trial: Trial) -> None:
    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def part(state: Any, x: Any, y: Any) -> Any:
        return state[0], jax.tree_util.tree_map(jnp.add, state[1], jax.grad(loss_of)(state[0], x, y))

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def last(state: Any, x: Any, y: Any) -> Any:
        params, summed = part(state, x, y)
        steps: Any = trial.adapter.steps
        return steps.update(lambda: descend(params, summed)), zeros(params)

    state = weights(), zeros(weights())
    for number, (x, y) in enumerate(batches(20, 48)):
        is_last = number % 4 == 3
        state = (last if is_last else part)(state, x, y)
        trial.trained(is_last, 20)
    trial.updates += 3  # before the first update nobody knows that there is one
    assert trial.is_counted()


def test_two_networks_in_one_state_are_no_parts_of_each_other(trial: Trial) -> None:
    """A GAN's: the first one leads, and what the other one trains on is none of its samples."""

    def half(name: str) -> Any:
        @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
        def step(state: Any, x: Any, y: Any) -> Any:
            steps: Any = trial.adapter.steps
            gradients = jax.grad(loss_of)(state[name], x, y)
            return {**state, name: steps.update(lambda: descend(state[name], gradients))}

        return step

    first, second, state = half("one"), half("two"), {"one": weights(), "two": weights()}
    for x, y in batches(20, 24):
        state = second(first(state, x, y), x[:10], y[:10])
        trial.trained(1, 20)
    assert trial.is_counted()


def test_an_attack_that_a_step_is_given_is_no_part_of_its_batch(trial: Trial) -> None:
    """Adversarial training: it is a gradient with respect to the samples."""
    attack = jax.jit(jax.grad(lambda x, params, y: loss_of(params, x, y)))

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(params: Any, x: Any, y: Any, delta: Any) -> Any:
        steps: Any = trial.adapter.steps
        return steps.update(lambda: descend(params, jax.grad(loss_of)(params, x + 0.1 * delta, y)))

    params = weights()
    for x, y in batches(20, 24):
        params = step(params, x, y, attack(x, params, y))
        trial.trained(1, 20)
    trial.updates += 1  # before the first update nobody knows that there is one
    assert trial.is_counted()


def test_a_gradient_that_is_looked_at_alone_counts_nothing(trial: Trial) -> None:
    gradient, apply, params = jax.jit(jax.grad(loss_of)), updating(trial), weights()
    for x, y in batches(20, 24):
        norm = gradient(params, X[:100], Y[:100])["w"].sum()
        params = apply(params, gradient(params, x, y))
        assert norm.shape == ()
        trial.trained(1, 20)
    assert trial.is_counted()


def test_what_another_update_was_given_is_not_counted_with_the_next_one(trial: Trial) -> None:
    """Both take their gradients by one function, and the first one leads."""
    gradient, first, second = jax.jit(jax.grad(loss_of)), updating(trial), updating(trial)
    one, two = weights(), weights()
    for x, y in batches(20, 24):
        one = first(one, gradient(one, x, y))
        two = second(two, gradient(two, x[:10], y[:10]))
        trial.trained(1, 20)
    assert trial.is_counted()


def test_a_frozen_array_as_long_as_a_batch_is_none(trial: Trial) -> None:
    """The first call can't tell: it was chosen, and "batches are said to hold 20 samples" was held against it."""
    trial.session.suggest("batch_size", 20)

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(head: Any, frozen: Any, x: Any, y: Any) -> Any:
        def loss(head: Any) -> Any:
            return ((jnp.tanh(x @ frozen["w"] + frozen["b"]) @ head - y) ** 2).mean()

        return head - 0.1 * jax.grad(loss)(head)

    head, frozen = jnp.zeros((20,)), {"b": jnp.zeros((20,)), "c": jnp.zeros((20, 3)), "w": jnp.ones((4, 20))}
    for x, y in batches(20, 36):
        head = step(head, frozen, x, y)
    facts = trial.end()
    assert facts["unit"] == "samples"
    assert trial.samples >= 34 * 20


@pytest.mark.parametrize(("gives_numbers", "parts", "apart"), [(True, 1, 5), (True, 2, 3), (False, 1, 0)])
def test_a_score_after_each_call_of_many_steps_is_set_apart(
    trial: Trial, gives_numbers: bool, parts: int, apart: int
) -> None:
    """Of what gives data that may be trained on nobody knows. Slices are new arrays each time, of the same values."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def epoch(params: Any, xs: Any, ys: Any) -> Any:
        def one(params: Any, batch: Any) -> Any:
            return descend(params, jax.grad(loss_of)(params, *batch)), None

        return lax.scan(one, params, (xs, ys))[0]

    score = jax.jit(loss_of if gives_numbers else lambda params, x, y: x * params["w"])
    params = weights()
    for _ in range(8):
        params = epoch(params, X.reshape(12, 20, 4), Y.reshape(12, 20))
        for x, y in ((X, Y),) if parts == 1 else batches(120, parts):
            score(params, x, y)
    assert trial.set_apart() == apart, "the data have to come again, and a step has to follow"


def test_a_policy_that_acts_between_calls_of_many_steps_is_a_part_of_the_loop(trial: Trial) -> None:
    """Each episode begins with the same observation, and an action is a number."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(params: Any, xs: Any, ys: Any) -> Any:
        def one(params: Any, batch: Any) -> Any:
            return descend(params, jax.grad(loss_of)(params, *batch)), None

        return lax.scan(one, params, (xs, ys))[0]

    act, params = jax.jit(lambda params, seen: (seen @ params["w"]).argmax()), weights()
    for episode in range(8):
        for number in range(6):
            act(params, X[:1] + number * episode)
        params = update(params, X.reshape(12, 20, 4), Y.reshape(12, 20))
    assert trial.set_apart() == 0


def test_what_sums_losses_up_after_each_call_of_many_steps_is_a_part_of_the_loop(trial: Trial) -> None:
    """What the script makes between it and the next call, batches by NumPy, would be set apart with it."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def epoch(params: Any, xs: Any, ys: Any) -> Any:
        def one(params: Any, batch: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
            return descend(params, gradients), loss

        return lax.scan(one, params, (xs, ys))

    summed, params = jax.jit(lambda losses: losses.mean()), weights()
    for _ in range(8):
        params, losses = epoch(params, X.reshape(12, 20, 4), Y.reshape(12, 20))
        summed(losses)
    assert trial.set_apart() == 0


@pytest.mark.parametrize(("gives_numbers", "comes_again", "apart"), [(1, 0, 3), (0, 1, 1), (0, 0, 0)])
def test_a_librarys_function_that_the_script_compiles_validates_where_it_gives_numbers_or_is_asked_again(
    trial: Trial, gives_numbers: int, comes_again: int, apart: int
) -> None:
    """A policy is called so as well, of what is never the same, and gives what is trained on."""
    contract = pytest.importorskip("opt_einsum").contract  # JAX needs it
    score = jax.jit(functools.partial(contract, "ij,j->" if gives_numbers else "ij,j->i"))

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(params: Any, x: Any, y: Any) -> Any:
        return descend(params, jax.grad(loss_of)(params, x, y))

    params = weights()
    for number, (x, y) in enumerate(batches(20, 60)):
        params = step(params, x, y)
        trial.trained(1, 20)
        if number % 12 == 11:
            score(X if comes_again else X + number, params["w"])
    assert trial.is_counted()
    assert trial.set_apart() == apart, "the third time it comes again, as the script has ended"
