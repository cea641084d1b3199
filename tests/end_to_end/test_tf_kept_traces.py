"""Functions whose traces TensorFlow keeps, or makes before the first call, and what several functions share."""

# mypy: disable-error-code="untyped-decorator, name-defined, misc"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.tf_here import tf
from support.tf_networks import SAMPLES, Net, batches
from support.tf_trials import begin

__all__ = ["begin"]
pytestmark = pytest.mark.filterwarnings("ignore")
Begin = Callable[..., Any]


class ByHand:
    """A network whose step does without an optimizer."""

    def __init__(self) -> None:
        self.weights = tf.Variable(tf.zeros([8, 3]))

    def step(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ self.weights - tf.one_hot(y, 3)) ** 2)
        self.weights.assign_sub(0.01 * tape.gradient(loss, self.weights))
        return loss


def by_hand() -> Callable[..., Any]:
    return ByHand().step


@pytest.mark.parametrize(
    "make", [lambda: Net().step, pytest.param(by_hand, marks=pytest.mark.slow)], ids=["an optimizer", "by hand"]
)
def test_an_epoch_that_is_traced_anew_counts_what_its_step_was_traced_to_before(begin: Begin, make: Any) -> None:
    """The step within it has been traced, and isn't again: no gradient is seen in the second trace."""
    trial = begin()
    step, train = tf.function(make()), batches()

    @tf.function
    def epoch(data: Any, number: int) -> None:
        for x, y in data:
            step(x, y)

    for number in range(4):
        epoch(train, number)
    facts = trial.end()
    assert (trial.steps, trial.samples, facts["unit"]) == (28, 4 * SAMPLES, "samples")
    assert trial.set_apart() == 0


def test_a_function_that_calls_anothers_kept_trace_trains(begin: Begin) -> None:
    trial = begin()
    step, data = tf.function(by_hand()), iter(batches(10).repeat())
    through = tf.function(lambda x, y: step(2.0 * x, y))

    @tf.function
    def one(source: Any) -> None:
        step(*next(source))

    @tf.function
    def one_through(source: Any) -> None:
        through(*next(source))

    @tf.function
    def several(source: Any) -> None:
        for _ in tf.range(5):
            through(*next(source))

    for run in (one, one_through, several, one):
        for _ in range(4):
            run(data)
    facts = trial.end()
    assert (trial.steps, trial.samples, facts["unit"]) == (32, 320, "samples")


@pytest.mark.parametrize("called", ["the function", "what it was traced to"])
def test_a_function_that_was_traced_before_it_is_called_trains(begin: Begin, called: str) -> None:
    trial = begin()
    function = tf.function(Net().step)
    concrete = function.get_concrete_function(tf.TensorSpec([None, 8]), tf.TensorSpec([None], tf.int32))
    step = function if called == "the function" else concrete
    for x, y in batches(10).repeat(2):
        step(x, y)
    facts = trial.end()
    assert (trial.steps, trial.samples, facts["unit"]) == (10, 100, "samples")
    assert facts["as_written"]["batch_size"] == 10


def test_steps_of_functions_that_share_an_optimizer_count_once(begin: Begin) -> None:
    trial = begin()
    net = Net()

    @tf.function
    def with_noise(x: Any, y: Any) -> None:
        net.step(x + tf.random.normal(tf.shape(x)), y)

    step = tf.function(net.step)
    for number, (x, y) in enumerate(batches(10).repeat(4)):
        (step, with_noise, net.step)[number % 3](x, y)
    facts = trial.end()
    assert (trial.steps, trial.samples) == (20, 200), facts


def test_two_gradients_of_one_function_are_one_step_by_hand(begin: Begin) -> None:
    trial = begin()
    weights, others = tf.Variable(tf.zeros([8, 3])), tf.Variable(tf.zeros([8, 3]))

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights - tf.one_hot(y, 3)) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ others) ** 2)
        others.assign_sub(0.1 * tape.gradient(loss, others))

    for x, y in batches(10).repeat(2):
        step(x, y)
    trial.end()
    assert (trial.steps, trial.samples) == (10, 100)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "tf.function"])
def test_what_a_gradient_computes_anew_is_no_step_and_no_loss(begin: Begin, traced: bool) -> None:
    trial = begin()
    inner, outer = tf.Variable(tf.random.normal([8, 16])), tf.Variable(tf.random.normal([16, 3]))
    block = tf.recompute_grad(lambda x: 100.0 + tf.nn.relu(x @ inner))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((0.01 * block(x) @ outer) ** 2)
        for weights, gradient in zip((inner, outer), tape.gradient(loss, [inner, outer]), strict=True):
            weights.assign_sub(0.0 * gradient)
        return loss

    run = tf.function(step) if traced else step
    x = tf.random.normal([6, 8])
    losses = [float(run(x)) for _ in range(5)]
    trial.session.clock.synchronize()
    assert trial.steps == (5 if traced else 4)
    assert trial.loops.take_loss() == pytest.approx(losses[-1])


@pytest.mark.parametrize("traced", [False, True], ids=["in one graph", "by functions of its own"])
def test_what_a_graph_fetches_to_validate_on_does_not_count(begin: Begin, traced: bool) -> None:
    """Both were counted, and the larger one was told as the size of batches."""
    trial, net = begin(), Net()
    step, score = (tf.function(net.step), tf.function(net.score)) if traced else (net.step, net.score)
    train, held_out = iter(batches(10).repeat()), iter(batches(25).repeat())

    @tf.function
    def both() -> Any:
        (x, y), (u, v) = next(train), next(held_out)
        return step(x, y), score(u, v)

    for _ in range(5):
        both()
    facts = trial.end()
    assert (trial.steps, trial.samples, facts["as_written"]["batch_size"]) == (5, 50, 10)
    assert len(facts["training_loaders"]) == 1


def test_two_batches_that_one_loss_is_of_count_both(begin: Begin) -> None:
    trial, net = begin(), Net()
    step = tf.function(net.step)
    labelled, other = iter(batches(10).repeat()), iter(batches(25).repeat())

    @tf.function
    def both() -> None:
        (x, y), (u, v) = next(labelled), next(other)
        step(tf.concat([x, u], 0), tf.concat([y, v], 0))

    for _ in range(5):
        both()
    assert len(trial.end()["training_loaders"]) == 2
    assert trial.samples == 5 * 35


@pytest.mark.parametrize("make", [Net, ByHand], ids=["an optimizer", "by hand"])
def test_two_networks_of_a_class_take_a_step_together(begin: Begin, make: Callable[[], Any]) -> None:
    """As PyTorch's optimizers do: one on each batch, though both run the same code."""
    trial = begin()
    networks = make(), make()
    steps = [tf.function(net.step) for net in networks]
    for x, y in batches(10):
        for step in steps:
            step(x, y)
    trial.end()
    assert (trial.steps, trial.samples) == (5, 50)
