"""Which arrays are a step's batch in loops of JAX alone: mapped, closed over, refilled in place, and given twice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy
import pytest
from support.jax_here import jax
from support.jax_trial import Trial, X, Y, batches, descend, loss_of, watched, weights

jnp = jax.numpy
HIDDEN = 512


@pytest.fixture
def trial() -> Iterator[Trial]:
    """JAX under the watch."""
    with watched() as made:
        yield made


def update(trial: Trial, params: Any, gradients: Any) -> Any:
    """As ``optax.apply_updates`` is seen to do it."""
    assert trial.adapter.steps is not None
    return trial.adapter.steps.update(lambda: descend(params, gradients))


def layers(inputs: int = 4, hidden: int = HIDDEN, outputs: int = 1) -> Any:
    first, second = jnp.full((inputs, hidden), 0.01), jnp.full((hidden, outputs), 0.01)
    return {"w1": first, "b1": jnp.zeros(hidden), "b2": jnp.zeros(hidden), "w2": second}


def applied(params: Any, x: Any) -> Any:
    return (jnp.tanh(x @ params["w1"] + params["b1"]) + params["b2"]) @ params["w2"]


def loss_of_layers(params: Any, x: Any, y: Any) -> Any:
    return ((applied(params, x)[:, 0] - y) ** 2).mean()


# what is mapped over one device


@pytest.mark.slow
def test_parameters_that_are_mapped_and_updated_by_hand_are_no_batch(trial: Trial) -> None:
    """They are as many arrays as the hidden layer is wide, and new with each call."""
    gradient = jax.pmap(jax.grad(lambda params, batch: loss_of_layers(params, batch["x"], batch["y"])))
    params = jax.tree_util.tree_map(lambda leaf: leaf[None], layers())
    for x, y in batches(20, 15):
        params = descend(params, gradient(params, {"x": x[None], "y": y[None]}))
        trial.trained(1, 20)
    assert trial.is_counted(late=1, late_rows=20)


def test_numbers_that_are_mapped_are_no_samples(trial: Trial) -> None:
    """A rate, and which step it is, as many as there are devices."""

    def update(params: Any, rate: Any, number: Any, x: Any) -> Any:
        gradients = jax.grad(lambda params: (applied(params, x) ** 2).mean() + 0.0 * number)(params)
        return jax.tree_util.tree_map(lambda p, g: p - rate * g, params, gradients)

    step = jax.pmap(update)
    params = jax.tree_util.tree_map(lambda leaf: leaf[None], layers())
    for number, (x, _) in enumerate(batches(20, 15)):
        params = step(params, jnp.full(1, 0.1 / (number + 1)), jnp.full(1, number), x[None])
        trial.trained(1, 20)
    assert trial.is_counted()
    assert trial.end()["unit"] == "samples"


def test_data_that_are_mapped_as_a_whole_are_a_batch(trial: Trial) -> None:
    step = jax.pmap(lambda params, x, y: descend(params, jax.grad(loss_of_layers)(params, x, y)))
    params, x, y = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf)[None], (layers(), X, Y))
    for _ in range(30):
        params = step(params, x, y)
        trial.trained(1, 240)
    assert trial.is_counted()
    assert trial.end()["unit"] == "samples"


# what an eager loss closes over


class Model:
    """What a loss closes over, and is no array."""

    def __call__(self, params: Any, x: Any) -> Any:
        return applied(params, x)


def averaged(teacher: Any) -> Any:
    """New arrays, of lengths that no batch has."""
    return jax.tree_util.tree_map(lambda leaf: 0.9 * leaf, teacher)


@pytest.mark.slow
def test_parameters_of_another_model_that_a_loss_closes_over_are_no_batch(trial: Trial) -> None:
    """A GAN's: the discriminator's loss makes samples by the generator, whose parameters are new with each step."""
    generator, discriminator = layers(2, HIDDEN, 4), layers(4, 64)

    def step(generator: Any, discriminator: Any, x: Any) -> tuple[Any, Any]:
        noise = jnp.asarray(x[:, :2])

        def loss_of_discriminator(params: Any) -> Any:
            return (applied(params, applied(generator, noise)) ** 2).mean() + ((applied(params, x) - 1.0) ** 2).mean()

        discriminator = descend(discriminator, jax.grad(loss_of_discriminator)(discriminator))

        def loss_of_generator(params: Any) -> Any:
            return ((applied(discriminator, applied(params, noise)) - 1.0) ** 2).mean()

        return descend(generator, jax.grad(loss_of_generator)(generator)), discriminator

    for x, _ in batches(20, 15):
        generator, discriminator = step(generator, discriminator, x)
        trial.trained(1, 20)
    # Samples of the first step aren't: that the generator's parameters are some isn't known yet.
    assert trial.is_counted(late_rows=20)
    assert trial.end()["unit"] == "samples"


@pytest.mark.parametrize("batch_is", ["given", "around"])
def test_a_majority_of_what_is_around_a_loss_is_no_batch(trial: Trial, batch_is: str) -> None:
    """What an average gave is new with each step, and no parameter. Where nothing is given, steps are counted."""
    params, teacher = weights(), {**layers(), "more": [jnp.zeros(HIDDEN)] * 4}

    def taken(params: Any, teacher: Any, x: Any, y: Any) -> Any:
        def loss(params: Any, *given: Any) -> Any:
            return loss_of(params, *(given or (x, y))) + 0.0 * applied(teacher, given[0] if given else x).mean()

        return descend(params, jax.grad(loss)(params, *((x, y) if batch_is == "given" else ())))

    for x, y in batches(20, 15):
        params, teacher = taken(params, teacher, x, y), averaged(teacher)
        trial.trained(1, 20 if batch_is == "given" else 0)
    assert trial.is_counted(late=1, late_rows=20 if batch_is == "given" else 0)
    facts = trial.end()
    assert facts["unit"] == ("samples" if batch_is == "given" else "steps")
    assert batch_is == "given" or any("what a step is given is 4, 20, 512 long" in said for said in facts["remarks"])


@pytest.mark.parametrize(
    "around", ["a model", *(pytest.param(it, marks=pytest.mark.slow) for it in ("a number", "indices"))]
)
def test_data_that_stay_are_a_batch_unless_what_is_around_a_loss_may_choose_of_them(trial: Trial, around: str) -> None:
    model, params, x, y = Model(), layers(hidden=8), jnp.asarray(X), jnp.asarray(Y)

    def taken(params: Any, number: Any) -> Any:
        def loss(params: Any, x: Any, y: Any) -> Any:
            return ((model(params, x)[:, 0] - y) ** 2).mean()

        def loss_of_part(params: Any, x: Any, y: Any) -> Any:
            part = slice(number, number + 20) if around == "a number" else number
            return loss(params, x[part], y[part])

        return descend(params, jax.grad(loss if around == "a model" else loss_of_part)(params, x, y))

    chosen = jnp.arange(20)
    for number in range(15):
        params = taken(params, chosen if around == "indices" else number)
        trial.trained(1, 240)
    facts = trial.end()
    assert (facts["unit"], trial.steps) == ("samples" if around == "a model" else "steps", 14)
    assert around != "a model" or trial.is_counted(late=1, late_rows=240)


@pytest.mark.parametrize("held", [pytest.param("each by itself", marks=pytest.mark.slow), "in a structure", "bound"])
def test_a_batch_that_a_loss_closes_over_counts(trial: Trial, held: str) -> None:
    """With a rate of its own, and a key for random numbers; nothing is given but the parameters."""
    key = jax.random.key(0)

    def step(params: Any, x: Any, y: Any, drawn: Any) -> Any:
        batch, scale = {"x": x, "y": y}, jnp.float32(0.1)

        def loss(params: Any) -> Any:
            inputs, targets = (x, y) if held == "each by itself" else (batch["x"], batch["y"])
            return loss_of(params, inputs + scale * jax.random.normal(drawn, inputs.shape), targets)

        return descend(params, jax.grad(partial(loss_of, x=x, y=y) if held == "bound" else loss)(params))

    params = weights()
    for x, y in batches(50, 14):
        key, drawn = jax.random.split(key)
        params = step(params, x, y, drawn)
        trial.trained(1, len(x))
    assert trial.is_counted(late=1, late_rows=50)
    assert trial.end()["unit"] == "samples"


# two gradients of a batch, and parts of one


@pytest.mark.parametrize("kind", [pytest.param("NumPy's", marks=pytest.mark.slow), "JAX's"])
@pytest.mark.parametrize("how", ["compiled", "eager"])
def test_two_gradients_on_a_batch_count_it_once(trial: Trial, how: str, kind: str) -> None:
    """SAM, with an update as optax applies it: the second gradient is of other parameters, on the same arrays."""
    gradient, params = jax.grad(loss_of), weights()
    gradient = jax.jit(gradient) if how == "compiled" else gradient
    for x, y in batches(20, 15):
        if kind == "JAX's":
            x, y = jnp.asarray(x), jnp.asarray(y)  # noqa: PLW2901
        there = descend(params, gradient(params, x, y))
        params = update(trial, params, gradient(there, x, y))
        trial.trained(1, 20)
    # Before the first update the second gradient begins a step; that of another line is of no samples.
    assert trial.is_counted(late=-1, late_rows=-20 if how == "compiled" else 0)
    assert trial.end()["unit"] == "samples"


@pytest.mark.parametrize(
    ("updates", "how"),
    [("as optax", "eager"), ("by hand", "compiled"),
     *(pytest.param(*each, marks=pytest.mark.slow) for each in (("as optax", "compiled"), ("by hand", "eager")))],
)  # fmt: skip
def test_parts_of_a_batch_in_a_buffer_that_is_filled_anew_count_all(trial: Trial, how: str, updates: str) -> None:
    """The very same arrays of NumPy's hold each of them."""
    gradient, params = jax.grad(loss_of), weights()
    gradient = jax.jit(gradient) if how == "compiled" else gradient
    x, y = numpy.empty_like(X[:20]), numpy.empty_like(Y[:20])
    parts = batches(20, 60)
    for _ in range(15):
        summed = weights()
        for _ in range(4):
            x[:], y[:] = next(parts)
            summed = jax.tree_util.tree_map(jnp.add, summed, gradient(params, x, y))
        params = update(trial, params, summed) if updates == "as optax" else descend(params, summed)
        trial.trained(1, 80)
    late = updates == "by hand"
    assert trial.is_counted(late=late, late_rows=80 * late)
    assert trial.end()["unit"] == "samples"


class Cursor:
    """Where a script is in its data."""

    def __init__(self) -> None:
        self.place = 0


@pytest.mark.parametrize("chooser", ["generator", "object", "function"])
def test_data_of_which_a_loss_chooses_parts_by_what_it_closes_over_are_no_batch(trial: Trial, chooser: str) -> None:
    """All data are given in each step, and never change: as many samples as they hold weren't trained on."""
    params, data = weights(), (X, Y)
    generator, cursor = numpy.random.default_rng(0), Cursor()

    def step(params: Any, x: Any, y: Any) -> Any:
        def drawn(size: int) -> Any:
            return generator.integers(0, size, 20)

        def loss(params: Any, x: Any, y: Any) -> Any:
            if chooser == "object":
                cursor.place = (cursor.place + 20) % len(x)
                chosen = numpy.arange(cursor.place, cursor.place + 20) % len(x)
            else:
                chosen = drawn(len(x)) if chooser == "function" else generator.integers(0, len(x), 20)
            return loss_of(params, x[chosen], y[chosen])

        return descend(params, jax.grad(loss)(params, x, y))

    for _ in range(15):
        params = step(params, *data)
        trial.trained(1, 0)
    assert trial.end()["unit"] == "steps"


# what JAX doesn't flatten


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("is_closed_over", [False, True])
def test_a_table_whose_keys_jax_could_not_sort_may_stand_beside_the_parameters(
    trial: Trial, is_closed_over: bool, is_compiled: bool
) -> None:
    """JAX flattens only what it differentiates, so plain Python has no error there."""

    def step(params: Any, x: Any, y: Any) -> Any:
        table = {0: 1.0, "rest": {None: 2.0, "scale": y}}

        def scaled(params: Any, table: Any) -> Any:
            return loss_of(params, x, table["rest"]["scale"]) * table["rest"][None]

        if is_closed_over:
            return descend(params, jax.grad(lambda params: scaled(params, table))(params))
        return descend(params, jax.grad(scaled)(params, table))

    step, params = jax.jit(step) if is_compiled else step, weights()
    for x, y in batches(20, 15):
        params = step(params, x, y)
        trial.trained(1)
    assert trial.steps >= 14


# several models at once


@pytest.mark.parametrize("is_compiled_within", [False, True])
@pytest.mark.parametrize("held", ["given", "closed over", "bound"])
@pytest.mark.parametrize("has_own_rows", [True, False])
def test_rows_of_an_ensemble_are_those_of_all_its_models(
    trial: Trial, has_own_rows: bool, held: str, is_compiled_within: bool
) -> None:
    """Its data have a dimension in front, of five models, and that isn't the batch; what all share is given once."""

    def one(params: Any, x: Any, y: Any) -> Any:
        if held == "given":
            loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        else:  # as most losses of Flax and optax have it
            of = partial(loss_of, x=x, y=y) if held == "bound" else lambda params: loss_of(params, x, y)
            loss, gradients = jax.value_and_grad(of)(params)
        return descend(params, gradients), loss

    axes = (0, 0, 0) if has_own_rows else (0, None, None)
    mapped = jax.vmap(jax.jit(one) if is_compiled_within else one, in_axes=axes)
    step, params = jax.jit(mapped), {"w": jnp.zeros((5, 4)), "b": jnp.zeros(5)}
    for number in range(30):
        rows = numpy.random.default_rng(number).integers(0, len(X), (5, 16) if has_own_rows else 16)
        params, _ = step(params, X[rows], Y[rows])
        trial.trained(1, 80 if has_own_rows else 16)
    assert trial.is_counted()


def test_a_batch_of_a_parameters_shape_may_be_state_and_is_told_as_that() -> None:
    """Of the arrays that are new with each call nobody knows then whether one is a copy of the parameters."""
    with watched() as trial:

        @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
        def step(w: Any, x: Any) -> Any:
            loss, gradient = jax.value_and_grad(lambda w: ((x - w) ** 2).mean())(w)
            return w - 0.1 * gradient, loss

        w = jnp.zeros((20, 4), "float32")
        for x, _ in batches(20, 12):
            w, _ = step(w, jnp.asarray(x))
        facts = trial.end()
    assert facts["unit"] == "steps"
    (remark,) = [remark for remark in facts["remarks"] if "steps are counted" in remark]
    assert remark.endswith("that may be in what the function closes over, or have the shape of a parameter")
