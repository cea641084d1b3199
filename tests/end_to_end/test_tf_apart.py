"""Functions of a loop that take no gradient, in this very process: validation, updates, and what acts in the loop."""

# mypy: disable-error-code="untyped-decorator, name-defined, misc"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.tf_here import tf
from support.tf_networks import Net, batches
from support.tf_trials import STEPS_ALONE, begin

from tuner.child.tensorflow.graphs import trainable_updated

__all__ = ["begin"]

pytestmark = pytest.mark.filterwarnings("ignore")
Begin = Callable[..., Any]


@pytest.mark.slow  # 13 s beside three others
def test_what_acts_on_other_values_each_time_is_part_of_the_loop(begin: Begin) -> None:
    trial = begin()
    net = Net()

    @tf.function
    def act(state: Any) -> Any:
        return tf.random.categorical(net.model(state), 1)[:, 0]

    step = tf.function(net.step)
    for _ in range(4):
        states = [tf.random.normal([1, 8]) for _ in range(5)]
        actions = [act(state) for state in states]
        for _ in range(4):
            step(tf.concat(states, 0), tf.concat(actions, 0))
    facts = trial.end()
    assert (trial.steps, trial.set_apart()) == (16, 0)
    assert facts["remarks"] == [
        "act takes no gradient, and is given other values each time: it is part of what is timed", STEPS_ALONE
    ]


@pytest.mark.parametrize("fed_by", ["arrays", "a dataset", "a name"])
def test_validation_is_set_apart(begin: Begin, fed_by: str) -> None:
    trial = begin()
    net = Net()

    @tf.function
    def loss_of(x: Any, y: Any) -> Any:
        return net.score(x, y)

    @tf.function
    def val_loss(x: Any, y: Any) -> Any:
        return net.score(x, y)

    step, data = tf.function(net.step), batches(10)
    x, y = tf.random.normal([20, 8]), tf.zeros([20], tf.int32)
    for _ in range(4):
        for _ in range(4):
            step(x, y)
        if fed_by == "a dataset":
            for each in data:
                loss_of(*each)
        for half in (slice(0, 10), slice(10, 20)):
            if fed_by == "arrays":
                loss_of(x[half], y[half])
            elif fed_by == "a name":
                val_loss(tf.random.normal([10, 8]), y[half])
    facts = trial.end()
    assert trial.steps == 16
    assert trial.set_apart() == 4
    name = {"arrays": "loss_of", "a name": "val_loss"}.get(fed_by)
    said = f"{name} takes no gradient, and is called every few steps: it was set apart as validation"
    told = [] if fed_by == "a dataset" else [STEPS_ALONE]
    assert facts["remarks"] == ([said, *told] if name else told)


@pytest.mark.parametrize(
    "by_hand", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["an optimizer", "by hand"]
)
def test_gradients_that_another_function_applies_are_a_step_with_it(begin: Begin, by_hand: bool) -> None:
    trial = begin()
    net = Net()
    weights = net.model.trainable_variables
    net.optimizer.build(weights)
    sums = [tf.Variable(tf.zeros_like(weight), trainable=False) for weight in weights]

    @tf.function
    def gradients(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = net.loss(y, net.model(x))
        for total, gradient in zip(sums, tape.gradient(loss, weights), strict=True):
            total.assign_add(gradient)

    @tf.function
    def apply() -> None:
        if by_hand:
            for weight, total in zip(weights, sums, strict=True):
                weight.assign_sub(0.1 * total)
        else:
            net.optimizer.apply_gradients(zip([total.read_value() for total in sums], weights, strict=True))
        for total in sums:
            total.assign(tf.zeros_like(total))

    for number, (x, y) in enumerate(batches(5).repeat(4)):
        gradients(x, y)
        if number % 4 == 3:
            apply()
    facts = trial.end()
    assert trial.set_apart() == 0
    assert trial.samples == 200
    assert facts["remarks"] == []
    assert trial.steps == (39 if by_hand else 3 + 9), "gradients count until the first update is seen"


def test_a_copy_of_the_network_is_no_validation(begin: Begin) -> None:
    trial = begin()
    net, copy = Net(), Net()

    @tf.function
    def update_copy() -> None:
        for own, other in zip(copy.model.trainable_variables, net.model.trainable_variables, strict=True):
            own.assign(other)

    step = tf.function(net.step)
    x, y = tf.random.normal([6, 8]), tf.zeros([6], tf.int32)
    for number in range(20):
        step(x, y)
        if number % 5 == 4:
            update_copy()
    facts = trial.end()
    assert (trial.steps, trial.set_apart(), facts["remarks"]) == (20, 0, [STEPS_ALONE])


def test_variables_that_loops_and_branches_update(begin: Begin) -> None:
    begin()
    weight, mean = tf.Variable([1.0]), tf.keras.metrics.Mean()

    @tf.function
    def within(count: Any, trains: bool) -> None:
        for number in tf.range(count):
            if number > 1:
                mean.update_state(1.0)
            elif trains:
                weight.assign_add([1.0])
            else:
                mean.update_state(weight)

    for trains in (False, True):
        assert trainable_updated(within.get_concrete_function(tf.constant(3), trains).graph) is trains


def test_a_function_that_makes_the_variables_does_not_train_them(begin: Begin) -> None:
    trial = begin()
    net, made = Net(), tf.keras.Sequential([tf.keras.layers.Dense(3)])

    @tf.function
    def act(state: Any) -> Any:
        return made(state)

    x, y = tf.random.normal([6, 8]), tf.zeros([6], tf.int32)
    step = tf.function(net.step)
    for number in range(3):
        act(tf.fill([1, 8], float(number)))
        for _ in range(4):
            step(x, y)
    assert [trainable_updated(each.graph) for each in act._list_all_concrete_functions()] == [False, False]
    assert trial.end()["remarks"] == [
        "act takes no gradient, and is given other values each time: it is part of what is timed", STEPS_ALONE
    ]


def test_validation_on_the_training_data_is_set_apart(begin: Begin) -> None:
    trial = begin()
    net, data = Net(), batches(10)
    step, loss_of = tf.function(net.step), tf.function(net.score)
    for _ in range(3):
        for x, y in data:
            step(x, y)
        for x, y in data:
            loss_of(x, y)
    facts = trial.end()
    assert (trial.steps, trial.samples, trial.set_apart()) == (15, 150, 3)
    assert facts["remarks"] == []
