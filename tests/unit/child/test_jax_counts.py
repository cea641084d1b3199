"""Loops of JAX whose count of steps, samples or losses was wrong, and nothing said so."""

from __future__ import annotations

import functools
import threading
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


def one_step(params: Any, x: Any, y: Any) -> Any:
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss


def summed(params: Any, xs: Any, ys: Any) -> Any:
    """A gradient in parts."""

    def part(summed: Any, batch: Any) -> Any:
        return jax.tree_util.tree_map(jnp.add, summed, jax.grad(loss_of)(params, *batch)), None

    return lax.scan(part, jax.tree_util.tree_map(jnp.zeros_like, params), (xs, ys))[0]


# samples where the batch size is stated


@pytest.mark.parametrize("parts", [1, 4])
def test_a_batch_that_a_step_splits_counts_once(trial: Trial, parts: int) -> None:
    trial.session.suggest("batch_size", 80)

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(params: Any, x: Any, y: Any) -> Any:
        return descend(params, summed(params, x.reshape(parts, -1, 4), y.reshape(parts, -1)))

    params = weights()
    for _ in range(12):
        params = step(params, X[:80], Y[:80])
        trial.trained(1, 80)
    assert trial.is_counted()


def test_steps_in_a_scan_that_split_their_batches_count_each_once(trial: Trial) -> None:
    trial.session.suggest("batch_size", 80)

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def several(params: Any, xs: Any, ys: Any) -> Any:
        def one(params: Any, batch: Any) -> Any:
            x, y = batch
            return descend(params, summed(params, x.reshape(4, 20, 4), y.reshape(4, 20))), None

        return lax.scan(one, params, (xs, ys))[0]

    params = weights()
    for _ in range(6):
        params = several(params, X.reshape(3, 80, 4), Y.reshape(3, 80))
        trial.trained(3, 240)
    assert trial.is_counted()


def test_batches_that_a_scan_is_given_one_by_one_count_all(trial: Trial) -> None:
    """Of steps, and of the parts of one."""
    trial.session.suggest("batch_size", 20)

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(params: Any, xs: Any, ys: Any) -> Any:
        return descend(params, summed(params, xs, ys))

    params = weights()
    for _ in range(12):
        params = step(params, X[:80].reshape(4, 20, 4), Y[:80].reshape(4, 20))
        trial.trained(1, 80)
    assert trial.is_counted()


# loops of JAX's


@pytest.mark.parametrize("stated", [0, 80])
@pytest.mark.parametrize("nested", [False, True])
def test_the_walk_of_an_adversary_takes_no_steps(trial: Trial, stated: int, nested: bool) -> None:
    """Ten gradients of the samples go before the one that trains, whose update is by hand."""
    if stated:
        trial.session.suggest("batch_size", stated)
    inner = jax.jit(one_step) if nested else one_step

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(params: Any, x: Any, y: Any) -> Any:
        def walk(_: Any, there: Any) -> Any:
            return there + 0.01 * jnp.sign(jax.grad(loss_of, argnums=1)(params, there, y))

        return inner(params, lax.fori_loop(0, 10, walk, x), y)[0]

    params = weights()
    for _ in range(12):
        params = step(params, X[:80], Y[:80])
        trial.trained(1, stated)
    assert trial.is_counted()


@pytest.mark.parametrize("loop", ["fori_loop", "scan"])
def test_parameters_that_a_loop_hands_on_as_they_are_take_no_steps(trial: Trial, loop: str) -> None:
    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(params: Any, xs: Any, ys: Any) -> Any:
        def part(carry: Any, batch: Any) -> Any:
            params, summed = carry
            return (params, jax.tree_util.tree_map(jnp.add, summed, jax.grad(loss_of)(params, *batch))), None

        carry = params, jax.tree_util.tree_map(jnp.zeros_like, params)
        if loop == "scan":
            (params, summed), _ = lax.scan(part, carry, (xs, ys))
        else:
            params, summed = lax.fori_loop(0, 4, lambda n, carry: part(carry, (xs[n], ys[n]))[0], carry)
        return descend(params, summed)

    params = weights()
    for _ in range(12):
        params = step(params, X[:80].reshape(4, 20, 4), Y[:80].reshape(4, 20))
        trial.trained(1)
    assert trial.is_counted()


def test_steps_in_a_loop_are_steps_where_a_gradient_is_looked_at_after_them(trial: Trial) -> None:
    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def several(params: Any, x: Any, y: Any) -> Any:
        params = lax.fori_loop(0, 5, lambda _, params: one_step(params, x, y)[0], params)
        return params, (jax.grad(loss_of)(params, x, y)["w"] ** 2).sum()

    params = weights()
    for _ in range(8):
        params, _ = several(params, X[:20], Y[:20])
        trial.trained(5)
    assert trial.is_counted()


def test_an_update_of_several_batches_that_is_applied_by_hand_is_one_step(trial: Trial) -> None:
    """By ``optax.MultiSteps``, and what another library applies."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(params: Any, x: Any, y: Any) -> Any:
        trial.adapter.steps.multi_step(4)  # type: ignore[union-attr]  # it is there
        return one_step(params, x, y)[0]

    params = weights()
    for number in range(40):
        params = step(params, X[:20], Y[:20])
        trial.trained(number % 4 == 3, 20)
    assert trial.is_counted()


# data that stay the same


def by_a_number(params: Any, x: Any, y: Any, number: Any) -> Any:
    parts = (lax.dynamic_slice_in_dim(each, number % 12 * 20, 20) for each in (x, y))
    return one_step(params, *parts)[0]


def by_a_key(params: Any, x: Any, y: Any, number: Any) -> Any:
    drawn = jax.random.randint(jax.random.fold_in(jax.random.key(0), number), (20,), 0, len(x))
    return one_step(params, x[drawn], y[drawn])[0]


def within_the_loss(params: Any, x: Any, y: Any, number: Any) -> Any:
    def loss_of_part(params: Any, x: Any, y: Any, number: Any) -> Any:
        return loss_of(params, *(lax.dynamic_slice_in_dim(each, number % 12 * 20, 20) for each in (x, y)))

    return descend(params, jax.grad(loss_of_part)(params, x, y, number))


@pytest.mark.parametrize("stated", [0, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", [by_a_number, by_a_key, within_the_loss])
def test_data_of_which_a_step_takes_parts_are_no_batch(trial: Trial, how: Any, stated: int) -> None:
    if stated:
        trial.session.suggest("batch_size", stated)
    step, params, x, y = jax.jit(how), weights(), jnp.asarray(X), jnp.asarray(Y)
    for number in range(36):
        params = step(params, x, y, number)
    facts = trial.end()
    assert (facts["unit"], trial.steps, facts["row_places"]) == ("steps", 36, [])
    assert trial.samples == stated, "what the first call was given aren't its samples"
    assert "batch_size" not in facts["as_written"] or stated
    assert any(remark.startswith("steps are counted, and not samples") for remark in facts["remarks"])


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_first_batch_beside_what_may_choose_of_it_counts_once_the_next_one_is_another(
    trial: Trial, is_compiled: bool
) -> None:
    """What a step draws by is given to it as indices into data that stay are."""

    def step(params: Any, x: Any, y: Any, key: Any) -> Any:
        def noisy(params: Any, x: Any, y: Any, key: Any) -> Any:
            return loss_of(params, x + 0.01 * jax.random.normal(key, x.shape), y)

        return descend(params, jax.grad(noisy)(params, x, y, key))

    step, params = jax.jit(step) if is_compiled else step, weights()
    for number, (x, y) in enumerate(batches(20, 36)):
        params = step(params, x, y, jax.random.key(number))
        trial.trained(1, 20)
        assert not (is_compiled and 0 < number < 5) or trial.samples == 20 * (number + 1)
    assert trial.is_counted(late=0 if is_compiled else 1, late_rows=0 if is_compiled else 20)
    first, *_ = [block for block in trial.log.of("block") if block["samples"]]
    assert first["samples"] == 20 * first["steps"]


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize("how", ["compiled", "in another function", "eager", "the gradient alone"])
def test_data_that_a_step_trains_on_as_a_whole_are_its_batch(trial: Trial, how: str) -> None:
    """Where the gradient is given them, and nothing that could choose of them."""
    params, x, y = weights(), jnp.asarray(X), jnp.asarray(Y)
    inner = jax.jit(one_step)
    steps: dict[str, Any] = {
        "compiled": jax.jit(one_step), "in another function": jax.jit(lambda p, x, y: inner(p, x, y)[:1]),
        "eager": one_step, "the gradient alone": None,
    }  # fmt: skip
    gradient = jax.jit(jax.grad(loss_of))
    for _ in range(36):
        params = steps[how](params, x, y)[0] if steps[how] else descend(params, gradient(params, x, y))
        trial.trained(1, 240)
    late = 0 if how in ("compiled", "in another function") else 1
    assert trial.is_counted(late=late, late_rows=240 * late)
    assert trial.end()["unit"] == "samples"


# losses


@pytest.mark.parametrize("best", [777.0, float("inf")])
def test_an_argument_of_a_validation_is_no_loss(trial: Trial, best: float) -> None:
    """A state whose number at the loss' place among the step's results is another one."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def train(state: Any, x: Any, y: Any) -> Any:
        params, loss = one_step(state["params"], x, y)
        return loss, {"best": state["best"], "params": params}

    score = jax.jit(lambda state, x, y: loss_of(state["params"], x, y))
    state, losses = {"best": jnp.float32(best), "params": weights()}, []
    for number in range(60):
        loss, state = train(state, X[:20], Y[:20])
        losses.append(float(loss))
        if number % 12 == 11:
            score(state, X, Y)
    told = [record["value"] for record in trial.log.of("loss")]
    assert trial.set_apart() == 3 and len(told) >= 9
    assert set(told) <= set(losses)
    assert trial.log.of("failure") == []


# several threads


def test_a_trace_in_another_thread_is_no_part_of_a_step(trial: Trial) -> None:
    """Each step waits until another thread has traced a function of its own."""

    def traced_elsewhere(loss: Any) -> Any:
        thread = threading.Thread(target=lambda: jax.jit(lambda x: x + 1).trace(1.0))
        thread.start()
        thread.join()
        return loss

    def update(params: Any, x: Any, y: Any) -> Any:
        params, loss = one_step(params, x, y)
        return params, jax.pure_callback(traced_elsewhere, jax.ShapeDtypeStruct((), "float32"), loss)

    step, params, before = jax.jit(functools.partial(update)), weights(), 0
    for number in range(12):
        params, loss = step(params, X[:20], Y[:20])
        loss.block_until_ready()
        trial.trained(1, 20)
        before = before or trial.adapter.compiling.traces
        assert trial.adapter.compiling.traces == before, number
    assert trial.is_counted()


# several functions that train


@pytest.mark.parametrize("others", [1, 3])
def test_functions_that_give_their_parameters_to_each_other_count_all(trial: Trial, others: int) -> None:
    """One that tells of more every ten steps; one for each of several lengths."""

    def made(number: int) -> Any:
        def logged(state: Any, x: Any, y: Any) -> Any:
            params, loss = one_step(state["params"], x, y)
            return {"params": params, "table": state["table"]}, loss, number * (params["w"] ** 2).sum()

        return jax.jit(logged)

    plain, logged = jax.jit(made(0).__wrapped__), [made(number) for number in range(1, others + 1)]
    state = {"params": weights(), "table": jnp.ones(7)}
    for number in range(60):
        if number % 6 < others:
            state, _, _ = logged[number % 6](state, X[:20], Y[:20])
        else:
            state, _, _ = plain(state, X[:20], Y[:20])
        trial.trained(1, 20)
    late = trial.updates - trial.steps  # until it is known that they belong together
    assert late <= 12
    assert trial.is_counted(late=late, late_rows=20 * late)
    trial.end()
    assert any("train the same parameters by turns" in remark for remark in trial.session.facts.remarks)


def test_halves_of_a_state_that_goes_through_two_functions_count_once(trial: Trial) -> None:
    """A GAN's, in one state: each one trains its own half."""

    def made(name: str) -> Any:
        def update(state: Any, x: Any, y: Any) -> Any:
            gradients = jax.grad(loss_of)(state[name], x, y)
            return {**state, name: descend(state[name], gradients)}

        update.__name__ = name
        return jax.jit(update)

    first, second = made("first"), made("second")
    state = {"first": weights(), "second": weights()}
    for _ in range(60):
        state = second(first(state, X[:20], Y[:20]), X[:20], Y[:20])
        trial.trained(1, 20)
    assert trial.is_counted()
    trial.end()
    assert any(remark.startswith("second trains, too, by turns with") for remark in trial.session.facts.remarks)


def test_a_function_that_gives_where_a_gradient_is_taken_takes_no_step(trial: Trial) -> None:
    """SAM, in two compiled functions."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def climb(params: Any, x: Any, y: Any) -> Any:
        return jax.tree_util.tree_map(lambda p, g: p + 0.05 * g, params, jax.grad(loss_of)(params, x, y))

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(params: Any, there: Any, x: Any, y: Any) -> Any:
        return descend(params, jax.grad(loss_of)(there, x, y))

    params = weights()
    for _ in range(30):
        params = step(params, climb(params, X[:20], Y[:20]), X[:20], Y[:20])
        trial.updates += 1
    assert trial.updates - 1 <= trial.steps <= trial.updates


def test_a_step_that_is_compiled_ahead_of_its_calls_is_named_where_none_is_seen(trial: Trial) -> None:
    step = jax.jit(lambda params, x, y: one_step(params, x, y)[0])
    step.lower(weights(), X[:20], Y[:20])
    (said,) = trial.end_of_script()
    assert "<lambda>" in said and "step.lower(...).compile()" in said and "tuner.report" in said
    assert "neither an update" not in said
