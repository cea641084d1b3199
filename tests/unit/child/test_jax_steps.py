"""Loops of JAX alone, held against their own count of updates and rows: those that traces alone don't tell of."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.jax_here import jax
from support.jax_trial import Trial, X, Y, batches, descend, loss_of, watched, weights

from tuner.child.devices import named as device_named
from tuner.child.session import StopTrial

jnp, lax = jax.numpy, jax.lax


@pytest.fixture
def trial() -> Iterator[Trial]:
    """JAX under the watch."""
    with watched() as made:
        yield made


# traces that JAX has kept


def test_a_compiled_gradient_that_was_called_before_is_seen_in_the_function_around_it(trial: Trial) -> None:
    gradient = jax.jit(jax.value_and_grad(loss_of))

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(params: Any, x: Any, y: Any) -> Any:
        loss, gradients = gradient(params, x, y)
        return descend(params, gradients), loss

    params = weights()
    gradient(params, X[:20], Y[:20])  # to see that it is finite; of the same parameters as the first step
    for x, y in batches(20, 30):
        params, _ = update(params, x, y)
        trial.trained(1, len(x))
    assert trial.is_counted()
    assert trial.adapter.steps is not None and trial.adapter.steps.devices.platforms == {"cpu"}


def test_a_body_that_was_scanned_before_is_seen_over_another_length(trial: Trial) -> None:
    """JAX traces it once: what is scanned in chunks of several lengths takes as many steps as each call has."""

    def one(params: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        return descend(params, gradients), loss

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def several(params: Any, xs: Any, ys: Any) -> Any:
        return lax.scan(one, params, (xs, ys))

    params = weights()
    for length in (5, 5, 3, 5, 3, 7, 5, 5):
        params, _ = several(params, X[: 20 * length].reshape(length, 20, 4), Y[: 20 * length].reshape(length, 20))
        trial.updates += length
    assert trial.is_counted()
    trial.end()
    assert any("in a loop of JAX's" in remark for remark in trial.session.facts.remarks)


def test_a_loop_outside_of_any_compiled_function_is_counted(trial: Trial) -> None:
    def one(params: Any, batch: Any) -> Any:
        return descend(params, jax.grad(loss_of)(params, *batch)), None

    params = weights()
    for length in (5, 3, 5, 5):
        several = X[: 20 * length].reshape(length, 20, 4), Y[: 20 * length].reshape(length, 20)
        params, _ = lax.scan(one, params, several)
        params = lax.fori_loop(0, 2, lambda number, params: one(params, (X[:20], Y[:20]))[0], params)
    assert trial.steps == 18, "the first one of the two leads"


@pytest.mark.parametrize("is_jitted", [True, False])
def test_a_call_of_many_steps_is_told_of_before_it_runs(trial: Trial, is_jitted: bool) -> None:
    """It may take longer than the trial: what it does then is no compilation any more."""

    def one(_: Any, params: Any) -> Any:
        return descend(params, jax.grad(loss_of)(params, X, Y))

    def epoch(params: Any) -> Any:
        return lax.fori_loop(0, 40, one, params)

    params = (jax.jit(epoch) if is_jitted else epoch)(weights())
    called = ("epoch" if is_jitted else "one", 40)
    assert [(told["function"], told["steps"]) for told in trial.log.of("long-call")] == [called]
    assert [pause["begins"] for pause in trial.log.of("pause")] == [True, False]
    (jax.jit(epoch) if is_jitted else epoch)(params)
    assert len(trial.log.of("long-call")) == 1, "a later one is no longer than the first one"


@pytest.mark.parametrize("how", ["by a static argument", "by a structure", "by partial functions"])
def test_a_function_that_trains_or_scores_trains_where_it_does(trial: Trial, how: str) -> None:
    def run(train: bool, params: Any, x: Any, y: Any, extra: Any = None) -> Any:
        if not train or extra is not None:
            return params, loss_of(params, x, y)
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        return descend(params, gradients), loss

    if how == "by a static argument":
        step = jax.jit(run, static_argnums=0)
        score = functools.partial(step, False)
        step = functools.partial(step, True)
    elif how == "by a structure":
        step = jax.jit(functools.partial(run, True))
        score = functools.partial(step, extra=0)
    else:
        step, score = jax.jit(functools.partial(run, True)), jax.jit(functools.partial(run, False))
    params = weights()
    for number, (x, y) in enumerate(batches(20, 40)):
        params, _ = step(params, x, y)
        trial.trained(1, len(x))
        if number % 8 == 7:
            score(params, X, Y)
    assert trial.is_counted()
    assert trial.set_apart() == 3, "the first call may have been a part of a step, and no step follows the last one"


# batches in parts


def test_gradients_that_a_scan_sums_are_one_step(trial: Trial) -> None:
    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(params: Any, xs: Any, ys: Any) -> Any:
        def part(summed: Any, batch: Any) -> Any:
            gradients = jax.grad(loss_of)(params, *batch)
            return jax.tree_util.tree_map(jnp.add, summed, gradients), None

        summed, _ = lax.scan(part, jax.tree_util.tree_map(jnp.zeros_like, params), (xs, ys))
        return descend(params, summed)

    params = weights()
    for _ in range(12):
        params = update(params, X[:80].reshape(4, 20, 4), Y[:80].reshape(4, 20))
        trial.updates += 1
    assert trial.is_counted()


def test_steps_in_a_scan_of_gradients_in_a_scan(trial: Trial) -> None:
    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def several(params: Any, xs: Any, ys: Any) -> Any:
        def step(params: Any, batches: Any) -> Any:
            def part(number: Any, summed: Any) -> Any:
                gradients = jax.grad(loss_of)(params, batches[0][number], batches[1][number])
                return jax.tree_util.tree_map(jnp.add, summed, gradients)

            zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
            return descend(params, lax.fori_loop(0, 4, part, zeros)), None

        return lax.scan(step, params, (xs, ys))[0]

    params = weights()
    for _ in range(6):
        params = several(params, X.reshape(3, 4, 20, 4), Y.reshape(3, 4, 20))
        trial.updates += 3
    assert trial.is_counted()


@pytest.mark.parametrize("compiled", [True, False])
def test_gradients_of_the_same_parameters_are_parts_of_a_step(trial: Trial, compiled: bool) -> None:
    """The update is by hand, in a function that takes no gradient."""
    gradient = jax.value_and_grad(loss_of)
    gradient = jax.jit(gradient) if compiled else gradient
    apply = jax.jit(descend)
    params = weights()
    for _ in range(10):
        summed = jax.tree_util.tree_map(jnp.zeros_like, params)
        for x, y in batches(20, 4):
            _, gradients = gradient(params, x, y)
            summed = jax.tree_util.tree_map(jnp.add, summed, gradients)
        params = apply(params, summed)
        trial.trained(1, 80)
    assert trial.is_counted(late=1, late_rows=80)


def test_a_sum_that_goes_round_is_no_parameter(trial: Trial) -> None:
    """A function is given the sum that it gave: only parameters that go round end steps."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def add(params: Any, summed: Any, x: Any, y: Any) -> Any:
        return jax.tree_util.tree_map(jnp.add, summed, jax.grad(loss_of)(params, x, y))

    params = weights()
    for _ in range(10):
        summed = jax.tree_util.tree_map(jnp.zeros_like, params)
        for x, y in batches(20, 3):
            summed = add(params, summed, x, y)
        params = descend(params, summed)
        trial.trained(1, 60)
    assert trial.is_counted(late=1, late_rows=60)


def test_a_loop_of_unknown_length_is_said(trial: Trial) -> None:
    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def several(params: Any, xs: Any, ys: Any) -> Any:
        def one(state: Any) -> Any:
            number, params = state
            return number + 1, descend(params, jax.grad(loss_of)(params, xs[number], ys[number]))

        return lax.while_loop(lambda state: state[0] < 5, one, (0, params))[1]

    params = weights()
    for _ in range(5):
        params = several(params, X[:100].reshape(5, 20, 4), Y[:100].reshape(5, 20))
    assert trial.steps == 5
    trial.end()
    assert any("nobody knows how often" in remark for remark in trial.session.facts.remarks)


# what isn't training


def rolled_out(params: Any, state: Any) -> tuple[Any, Any]:
    return state + 1.0, (jnp.tile(state, (20, 1)) * params["w"], state.sum() * jnp.ones(20))


@pytest.mark.parametrize("leads_by", ["many steps a call", "many calls"])
def test_rollouts_are_a_part_of_training(trial: Trial, leads_by: str) -> None:
    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(params: Any, x: Any, y: Any) -> Any:
        return descend(params, jax.grad(loss_of)(params, x, y))

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def many(params: Any, x: Any, y: Any) -> Any:
        return lax.fori_loop(0, 10, lambda _, params: descend(params, jax.grad(loss_of)(params, x, y)), params)

    rollout = jax.jit(rolled_out)
    params, state = weights(), jnp.zeros(4)
    for _ in range(12):
        state, (x, y) = rollout(params, state)
        if leads_by == "many calls":
            for _ in range(10):
                params = update(params, x, y)
        else:
            params = many(params, x, y)
        trial.updates += 10
    assert trial.steps == trial.updates
    assert trial.set_apart() == 0


def test_what_is_set_apart_is_said(trial: Trial) -> None:
    """Not of a schedule that is asked for every step's rate, also for the first one behind a validation."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(params: Any, x: Any, y: Any, rate: Any) -> Any:
        return jax.tree_util.tree_map(lambda p, g: p - rate * g, params, jax.grad(loss_of)(params, x, y))

    def rate_of(step: Any) -> Any:
        return 0.01 / (1.0 + step)

    score, schedule = jax.jit(loss_of), jax.jit(rate_of)
    params = weights()
    for number, (x, y) in enumerate(batches(20, 60)):
        params = update(params, x, y, schedule(number))
        trial.trained(1, 20)
        if number % 12 == 11:
            score(params, X, Y)
    assert trial.is_counted()
    assert trial.set_apart() == 3, "the first call may have been a part of a step, and no step follows the last one"
    trial.end()
    assert [remark for remark in trial.session.facts.remarks if "set apart" in remark] == [
        "loss_of takes no gradient, and is called every few steps: it was set apart as validation"
    ]


# what is held


@pytest.mark.slow  # 2 s beside three others
def test_nothing_of_a_trace_is_held(trial: Trial) -> None:
    """Also of a function that can't be seen to be traced, of a loop's body, and where a trace fails."""

    def one(params: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        return descend(params, gradients), loss

    def update(scale: float, params: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda params: scale * loss_of(params, x, y))(params)
        each = jax.vmap(jax.value_and_grad(loss_of), (None, 0, 0))(params, x, y)[0]
        params, losses = lax.scan(one, descend(params, gradients), (x[None], y[None]))
        return params, loss + 0.0 * losses.sum() + 0.0 * each.sum()

    def wrong(params: Any, x: Any, y: Any) -> Any:
        update(1.0, params, x, y)
        raise KeyError("wrong")

    with jax.checking_leaks():
        for made in (jax.jit(functools.partial(update, 1.0)), jax.jit(update)):
            given = () if made.__wrapped__ is not update else (1.0,)
            for size in (20, 10):
                made(*given, weights(), X[:size], Y[:size])
        with pytest.raises(KeyError):
            jax.jit(wrong)(weights(), X[:20], Y[:20])
    assert trial.adapter.steps is not None and trial.adapter.steps.tracing.may_be_outermost


# what can't be counted


class Sharded:
    """An array that lies on several devices, as far as that is asked of it."""

    def __init__(self, devices: int, *, own: bool) -> None:
        self.sharding = self
        self.device_set = [SimpleNamespace(platform="gpu") for _ in range(devices)]
        self.is_fully_addressable = own


@pytest.mark.parametrize(
    ("lies_on", "device", "why"),
    [
        ((1, True), "cuda:0", ""),
        ((2, True), "cuda:0", "the script computes on 2 devices at once: a trial has one"),
        ((2, True), "cpu", ""),
        ((2, False), "cpu", "the script's arrays lie on devices of several processes: a trial has one process"),
    ],
)
def test_arrays_on_devices_beside_the_trial_s_own_end_it(
    trial: Trial, lies_on: tuple[int, bool], device: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, own = lies_on
    monkeypatch.setattr("tuner.child.session._watchdog", lambda: None)  # it would end this process
    trial.session.device = device_named(device)
    assert trial.adapter.steps is not None
    with pytest.raises(StopTrial) if why else contextlib.nullcontext():
        trial.adapter.steps.update(lambda: {"number": 1, "w": Sharded(devices, own=own)})
    failures = [(failure["reason"], failure["detail"]) for failure in trial.log.of("failure")]
    assert failures == ([("unsupported", why)] if why else [])
    assert trial.session.facts.devices == devices


def test_a_script_without_a_step_is_told_what_was_looked_for(trial: Trial) -> None:
    assert trial.end_of_script() == []
    jax.jit(lambda params: jax.vjp(lambda params: loss_of(params, X, Y), params)[1](1.0))(weights())
    (said,) = trial.end_of_script()
    assert "jax.value_and_grad" in said and "optax.apply_updates" in said and "jax.vjp" in said and "\n" not in said


def test_gradients_that_nothing_is_updated_by_are_no_steps(trial: Trial) -> None:
    gradient, params = jax.jit(jax.grad(loss_of)), weights()
    for x, y in batches(20, 9):
        gradient(params, x, y)
    assert trial.steps == 0
    (said,) = trial.end_of_script()
    assert "neither an update by optax.apply_updates was, nor a second gradient of other parameters" in said


@pytest.mark.parametrize(("loop", "steps"), [("for", "all 500"), ("scan", "all 500"), ("while", "all")])
def test_all_steps_in_one_call_cannot_be_measured(trial: Trial, loop: str, steps: str) -> None:
    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def train(params: Any) -> Any:
        def one(params: Any, _: Any = None) -> Any:
            return descend(params, jax.grad(loss_of)(params, X, Y)), None

        def counted(state: Any) -> Any:
            return state[0] + 1, one(state[1])[0]

        if loop == "while":
            return lax.while_loop(lambda state: state[0] < 500, counted, (0, params))[1]
        if loop == "scan":  # a number of updates that a division gave
            return lax.scan(one, params, None, 1e3 // 2)[0]
        return lax.fori_loop(0, 500, lambda _, params: one(params)[0], params)

    train(weights())
    (said,) = trial.end_of_script()
    assert said == f"{steps} steps are in one call of train, in which nothing can be measured"


def test_a_gradient_that_a_loop_begins_with_does_not_lead_it(trial: Trial) -> None:
    """As solvers do that keep the newest gradient in their state (L-BFGS): their first fifty steps counted as none."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(params: Any, gradients: Any, x: Any, y: Any) -> Any:
        params = descend(params, gradients)
        return params, jax.grad(loss_of)(params, x, y)

    params = weights()
    gradients = jax.grad(loss_of)(params, X[:20], Y[:20])
    trial.trained(0, 20)
    for x, y in batches(20, 12):
        params, gradients = step(params, gradients, x, y)
        trial.trained(1, len(x))
    remarks = trial.end()["remarks"]
    assert trial.is_counted() and not any("by turns" in remark for remark in remarks), remarks
