"""What is said of custom loops, in this very process: each false claim has its detector, XLA has run or is refused."""

# mypy: disable-error-code="untyped-decorator, name-defined, misc"
from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from support.tf_here import tf
from support.tf_networks import Gan, Net, batches
from support.tf_trials import STEPS_ALONE, begin

from tuner.child.session import StopTrial
from tuner.child.tensorflow.graphs import products

__all__ = ["begin"]

pytestmark = pytest.mark.filterwarnings("ignore")
Begin = Callable[..., Any]


@pytest.mark.slow  # 14 s beside three others
def test_noise_of_a_fixed_number_of_rows_is_told(begin: Begin) -> None:
    """The fifth false claim: another batch size would leave half of the step as it is."""
    trial = begin()
    step = tf.function(Gan(10).step)
    for x, _ in batches(10).repeat(2):
        step(x)
    facts = trial.end()
    assert "draws tensors of 10 rows" in facts["left_out"]["batch_size"]

    trial = begin({"batch_size": 25}, as_written={"batch_size": 10})
    step = tf.function(Gan(10).step)
    for x, _ in batches(25).repeat(2):
        step(x)
    trial.end()
    evidence, reason = trial.evidence("batch_size")
    assert evidence == "contradicted"
    assert "draws tensors of 10 rows" in reason

    trial = begin({"batch_size": 25}, as_written={"batch_size": 10})
    step = tf.function(Gan(None).step)
    for x, _ in batches(25).repeat(2):
        step(x)
    trial.end()
    assert not trial.log.of("knob"), "the watch on datasets reports what can be changed"


@pytest.mark.parametrize(
    ("mean", "told"),
    [
        (lambda losses, _: tf.nn.compute_average_loss(losses, global_batch_size=10), True),
        (lambda losses, _: tf.reduce_sum(losses) * (1 / 10), True),
        (lambda losses, _: 0.5 * -tf.reduce_sum(-losses) / 10, True),
        (lambda losses, _: tf.nn.compute_average_loss(losses, None), False),
        (lambda losses, _: tf.reduce_sum(losses) / tf.cast(tf.shape(losses)[0], tf.float32), False),
        (lambda losses, _: tf.reduce_mean(losses) / 10, False),
        (lambda losses, biases: tf.reduce_mean(losses) + 0.1 * tf.reduce_sum(biases**2), False),
    ],
    ids=["average", "factor", "scaled sum", "own average", "own rows", "scaled mean", "weight decay"],
)
@pytest.mark.parametrize("size_is_known", [False, True])
def test_a_loss_that_is_divided_by_a_fixed_number_of_rows_is_told(
    begin: Begin, mean: Callable[[Any, Any], Any], told: bool, size_is_known: bool
) -> None:
    """Twice the batch would have twice the gradient, and a loss that is twice as high."""
    weights, biases = tf.Variable(tf.ones((4, 1))), tf.Variable(tf.ones(1))

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = mean(tf.reduce_sum((x @ weights + biases) ** 2, axis=1), biases)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    def train(size: int) -> None:
        for x in tf.data.Dataset.from_tensor_slices(tf.ones((50, 4))).batch(size, drop_remainder=size_is_known):
            step(x)

    trial = begin()
    train(10)
    left_out = trial.end()["left_out"].get("batch_size", "")
    assert ("itself divides a sum by 10, the rows of a batch" in left_out) is told


# tracing, precision, XLA


def test_a_trace_with_every_step_is_a_finding(begin: Begin) -> None:
    weight = tf.Variable(1.0)

    @tf.function
    def step(rate: Any) -> None:
        with tf.GradientTape() as tape:
            loss = weight * weight
        weight.assign_sub(rate * tape.gradient(loss, weight))

    trial = begin()
    before = trial.loops.activity()
    for number in range(20):
        step(0.001 * number)
    assert trial.loops.activity() == before + 20
    facts = trial.end()
    assert facts["retraces"] == 19
    assert "traced anew 19 times in 20 steps" in facts["remarks"][0]
    assert facts["unit"] == "steps"

    trial = begin()
    for number in range(20):
        step(tf.constant(0.001 * number))
    facts = trial.end()
    assert (facts["retraces"], facts["remarks"]) == (0, [STEPS_ALONE])


def test_products_are_counted_by_dtype_in_nested_functions(begin: Begin) -> None:
    """The fourth false claim: a policy of Keras' layers changes nothing in a step that has none."""

    @tf.function
    def inner(x: Any) -> Any:
        return tf.cast(tf.cast(x, tf.bfloat16) @ tf.cast(x, tf.bfloat16), tf.float32)

    @tf.function
    def outer(x: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, inner(y) @ y), (0, x))

    assert products(tf, outer.get_concrete_function(tf.ones([2, 2]))) == {"bfloat16": 1, "float32": 1}
    trial = begin({"precision": "bf16"})
    net = Net()
    step = tf.function(net.step)
    for x, y in batches():
        step(x, y)
    assert set(trial.end()["products"]) == {"float32"}


def module_of(net: Net) -> Any:
    """A module whose step is a method, as tutorials write it."""

    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        @tf.function
        def step(self, x: Any, y: Any) -> Any:
            return self.net.step(x, y)

    return Module()


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize("method", [pytest.param(False, marks=pytest.mark.slow), True])
def test_xla_by_promotion_is_verified(begin: Begin, method: bool) -> None:
    trial = begin({"jit_compile": True})
    net = Net()
    module = module_of(net)
    step = module.step if method else tf.function(net.step)
    before = trial.loops.activity()
    for x, y in batches(10).repeat(2):
        step(x, y)
    trial.end()
    assert trial.evidence("jit_compile") == ("verified", "")
    assert trial.loops.activity() == before + 2, "the script's trace and what was compiled"
    assert (trial.steps, trial.samples) == (10, 100)


@pytest.mark.slow
def test_functions_that_are_gone_at_the_end_ran_compiled_all_the_same(begin: Begin) -> None:
    """A script may make its step anew with each epoch, and the last one may be called just once."""
    trial = begin({"jit_compile": True})
    net = Net()
    for epoch in (batches(10), batches(10), batches(10).take(1)):
        step = tf.function(net.step)
        for x, y in epoch:
            step(x, y)
        del step
        gc.collect()
    assert all(entry.function is None for entry in trial.loops.functions.training)
    trial.end()
    assert trial.evidence("jit_compile") == ("verified", "")


def test_a_flag_on_a_traced_function_is_no_compilation(begin: Begin) -> None:
    """The first false claim."""
    trial = begin({"jit_compile": True})
    trial.session.knobs.delegate("jit_compile")
    step = tf.function(Net().step)
    for number, (x, y) in enumerate(batches(10).repeat(2)):
        step(x, y)
        if number == 2:
            step._jit_compile = True
    trial.end()
    assert trial.evidence("jit_compile")[0] == "contradicted"


@pytest.mark.slow  # 4 s beside three others
def test_xla_that_the_script_asks_for_is_as_written(begin: Begin) -> None:
    trial = begin()
    step = tf.function(Net().step, jit_compile=True)
    for x, y in batches(10).repeat(2):
        step(x, y)
    assert trial.end()["as_written"]["jit_compile"] is True
    trial = begin({"jit_compile": False})
    step = tf.function(Net().step, jit_compile=True)
    for x, y in batches(10).repeat(2):
        step(x, y)
    trial.end()
    assert trial.evidence("jit_compile") == ("verified", "")


def test_what_xla_refuses_is_infeasible_in_one_line(begin: Begin) -> None:
    weight = tf.Variable(1.0)

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            length = tf.cast(tf.strings.length(tf.strings.as_string(tf.reduce_sum(x))), tf.float32)
            loss = weight * length
        weight.assign_sub(0.001 * tape.gradient(loss, weight))

    trial = begin({"jit_compile": True})
    with pytest.raises(StopTrial):
        for x, _ in batches():
            step(x)
    failure = trial.log.of("failure")[0]
    assert failure["reason"] == "compile-failure"
    assert "AsString" in failure["detail"]
    assert len(failure["detail"].splitlines()) == 1


def test_an_error_of_the_scripts_own_stays_its_own(begin: Begin) -> None:
    trial = begin({"jit_compile": True})
    net = Net()
    step = tf.function(net.step)
    x, y = next(iter(batches()))
    step(x, y)
    with pytest.raises(ValueError, match="expected axis -1") as caught:
        step(x[:, :7], y)
    assert "XLA" not in str(caught.value)
    assert not trial.log.of("failure")


def test_a_step_that_calls_python_is_no_step_for_xla(begin: Begin) -> None:
    """An environment that is asked in the midst of a step: a trial was spent on what XLA refuses."""
    trial, net = begin(), Net()

    @tf.function
    def step(x: Any, y: Any) -> None:
        for _ in tf.range(2):
            tf.numpy_function(lambda: None, [], [])
        net.step(x, y)

    for x, y in batches():
        step(x, y)
    told = trial.end()["left_out"].get("jit_compile", "")
    assert told == "the training step calls Python (tf.py_function, tf.numpy_function): XLA can't do that"
