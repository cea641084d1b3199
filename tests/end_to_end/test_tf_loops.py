"""Loops that scripts write themselves, in this very process: what is a step, a sample, a loss, and what is claimed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    tf = pytest.importorskip("tensorflow", reason="TensorFlow isn't installed")
    keras = pytest.importorskip("keras", reason="Keras isn't installed")

from torch_trials import ENDLESS

from tuner.child.session import StopTrial
from tuner.child.tf_graphs import products

pytest_plugins = ["tf_trials"]
pytestmark = pytest.mark.filterwarnings("ignore")
Begin = Callable[..., Any]
SAMPLES = 50


def _data(batch: int = 8, samples: int = SAMPLES) -> Any:
    x, y = tf.random.normal([samples, 8]), tf.random.uniform([samples], 0, 3, tf.int32)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(samples).batch(batch)


class Net:
    """A small classifier, its optimizer, its training step and its scores."""

    def __init__(self, **options: Any) -> None:
        layers = keras.layers
        self.model = keras.Sequential([layers.Input([8]), layers.Dense(16, activation="relu"), layers.Dense(3)])
        self.optimizer = keras.optimizers.SGD(0.1, **options)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.losses: list[float] = []

    def step(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x))
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    def score(self, x: Any, y: Any) -> Any:
        return self.loss(y, self.model(x))


# steps and samples


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "tf.function"])
def test_steps_and_samples_of_a_loop_with_validation(begin: Begin, traced: bool) -> None:
    trial = begin()
    net, train, validation = Net(), _data(), _data(25)
    step, score = (tf.function(net.step), tf.function(net.score)) if traced else (net.step, net.score)
    for _ in range(3):
        for x, y in train:
            step(x, y)
        for x, y in validation:
            score(x, y)
    facts = trial.end()
    assert (trial.steps, trial.samples) == (21, 3 * SAMPLES)
    assert facts["unit"] == "samples"
    assert [key.split(":")[0] for key in facts["training_loaders"]] == ["test_tf_loops.py"]
    assert facts["as_written"]["batch_size"] == 8
    assert trial.set_apart() >= 2
    assert facts["left_out"].get("jit_compile", "") == ("" if traced else "the training step isn't a tf.function")


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "tf.function"])
def test_the_loss_of_a_screens_block_is_that_of_all_its_steps(begin: Begin, traced: bool) -> None:
    trial = begin()
    trial.session.seed = 1
    trial.session.clock._window = {**ENDLESS, "block_s": 1e9}
    net = Net()
    step = tf.function(net.step) if traced else net.step
    x, y = next(iter(_data()))
    losses = [float(step(x, y)) for _ in range(3)]
    trial.session.clock.synchronize()
    # The clock starts with the first step's end, which is a look at the loss, too.
    assert trial.loops.take_loss() == pytest.approx(sum(losses[1:]) / 2, rel=1e-5)
    assert trial.loops.take_loss() is None


def test_a_whole_epoch_in_one_function_is_counted_by_its_graph(begin: Begin) -> None:
    trial = begin()
    net, train, validation = Net(), _data(), _data(25)

    @tf.function
    def epoch(batches: Any) -> None:
        for x, y in batches:
            net.step(x, y)

    @tf.function
    def score(batches: Any) -> Any:
        total = 0.0
        for x, y in batches:
            total += net.score(x, y)
        return total

    for _ in range(4):
        epoch(train)
        score(validation)
    facts = trial.end()
    assert (trial.steps, trial.samples) == (28, 4 * SAMPLES)
    assert len(facts["training_loaders"]) == 1
    assert trial.set_apart() >= 3
    assert "fetches its batches itself" in facts["left_out"]["jit_compile"]
    assert facts["as_written"]["batch_size"] == 8


def test_raw_variables_without_an_optimizer(begin: Begin) -> None:
    weights = tf.Variable(tf.zeros([8, 1]))

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights - tf.cast(y[:, None], tf.float32)) ** 2)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    trial = begin()
    for _ in range(3):
        for x, y in _data():
            step(x, y)
    trial.end()
    # An optimizer may follow the first gradient, so it isn't a step yet.
    assert (trial.steps, trial.samples) == (20, 3 * SAMPLES)

    train = _data()

    @tf.function
    def epoch() -> None:
        for x, y in train:
            step(x, y)

    trial = begin()
    for _ in range(3):
        epoch()
    facts = trial.end()
    assert (trial.steps, trial.samples) == (21, 3 * SAMPLES)
    assert "isn't given as an argument" in facts["left_out"]["batch_size"]


def test_several_steps_a_call_from_an_iterator(begin: Begin) -> None:
    trial = begin()
    net, iterator = Net(), iter(_data(10).repeat())

    @tf.function
    def steps(source: Any, count: Any) -> None:
        for _ in tf.range(count):
            x, y = next(source)
            net.step(x, y)

    for _ in range(4):
        steps(iterator, tf.constant(5))
    facts = trial.end()
    assert (trial.steps, trial.samples) == (20, 200)
    assert len(facts["training_loaders"]) == 1


def test_gradients_by_a_function_and_updates_by_the_script(begin: Begin) -> None:
    trial = begin()
    net = Net()

    @tf.function
    def gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = net.loss(y, net.model(x))
        return tape.gradient(loss, net.model.trainable_variables)

    for x, y in _data(10).repeat(2):
        net.optimizer.apply_gradients(zip(gradients(x, y), net.model.trainable_variables, strict=True))
    trial.end()
    assert (trial.steps, trial.samples) == (10, 100)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "tf.function"])
def test_accumulated_gradients_are_one_step(begin: Begin, traced: bool) -> None:
    trial = begin()
    net = Net(gradient_accumulation_steps=2)
    step = tf.function(net.step) if traced else net.step
    for x, y in _data(10).repeat(2):
        step(x, y)
    trial.end()
    assert (trial.steps, trial.samples) == (5, 100)


def test_gradients_of_an_image_alone_are_no_training(begin: Begin) -> None:
    trial = begin()
    net = Net()

    @tf.function
    def salient(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = net.score(x, y)
        return tape.gradient(loss, x)

    for x, y in _data():
        salient(x, y)
    assert trial.steps == 0
    assert not trial.loops.trained


def test_it_stands_aside_while_keras_fits(begin: Begin) -> None:
    trial = begin()
    net = Net()
    net.model.compile(net.optimizer, net.loss)
    trial.loops.fitting = True
    net.model.fit(_data(), verbose=0)
    assert trial.steps == 0
    assert not trial.loops.functions.training
    assert not trial.loops.feeds.feeds


# several networks


class Gan:
    """Two networks that train each other; ``rows`` of noise, None for as many as the batch has."""

    def __init__(self, rows: int | None) -> None:
        layers = keras.layers
        self.rows = rows
        self.generator = keras.Sequential([layers.Input([4]), layers.Dense(8)])
        self.critic = keras.Sequential([layers.Input([8]), layers.Dense(4), layers.Dropout(0.3), layers.Dense(1)])
        self.optimizers = keras.optimizers.Adam(), keras.optimizers.Adam()
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def step(self, x: Any) -> None:
        noise = tf.random.normal([self.rows or x.shape[0], 4])
        with tf.GradientTape() as first, tf.GradientTape() as second:
            fake = self.critic(self.generator(noise), training=True)
            real = self.critic(x, training=True)
            deceive = self.loss(tf.ones_like(fake), fake)
            tell = self.loss(tf.ones_like(real), real) + self.loss(tf.zeros_like(fake), fake)
        for tape, loss, model, optimizer in zip(
            (first, second), (deceive, tell), (self.generator, self.critic), self.optimizers, strict=True
        ):
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "tf.function"])
def test_two_tapes_and_two_optimizers_are_one_step(begin: Begin, traced: bool) -> None:
    trial = begin()
    gan = Gan(None)
    step = tf.function(gan.step) if traced else gan.step
    for x, _ in _data(10).repeat(3):
        step(x)
    facts = trial.end()
    assert (trial.steps, trial.samples) == (15, 150)
    # A number of rows that is read off the batch grows with it.
    assert "batch_size" not in facts["left_out"]


def test_noise_of_a_fixed_number_of_rows_is_told(begin: Begin) -> None:
    """The fifth false claim: another batch size would leave half of the step as it is."""
    trial = begin()
    step = tf.function(Gan(10).step)
    for x, _ in _data(10).repeat(2):
        step(x)
    facts = trial.end()
    assert "draws tensors of 10 rows" in facts["left_out"]["batch_size"]

    trial = begin({"batch_size": 25}, as_written={"batch_size": 10})
    step = tf.function(Gan(10).step)
    for x, _ in _data(25).repeat(2):
        step(x)
    trial.end()
    evidence, reason = trial.evidence("batch_size")
    assert evidence == "contradicted"
    assert "draws tensors of 10 rows" in reason

    trial = begin({"batch_size": 25}, as_written={"batch_size": 10})
    step = tf.function(Gan(None).step)
    for x, _ in _data(25).repeat(2):
        step(x)
    trial.end()
    assert not trial.log.of("knob"), "the watch on datasets reports what can be changed"


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
    assert any("traced anew 19 times in 20 steps" in note["text"] for note in trial.log.of("note"))
    assert facts["unit"] == "steps"

    trial = begin()
    for number in range(20):
        step(tf.constant(0.001 * number))
    assert trial.end()["retraces"] == 0
    assert not trial.log.of("note")


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
    for x, y in _data():
        step(x, y)
    assert set(trial.end()["products"]) == {"float32"}


class Module(tf.Module):  # type: ignore[misc, name-defined]
    """A step as a method, as tutorials write it."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    @tf.function
    def step(self, x: Any, y: Any) -> Any:
        return self.net.step(x, y)


@pytest.mark.parametrize("method", [False, True])
def test_xla_by_promotion_is_verified(begin: Begin, method: bool) -> None:
    trial = begin({"jit_compile": True})
    net = Net()
    module = Module(net)
    step = module.step if method else tf.function(net.step)
    before = trial.loops.activity()
    for x, y in _data(10).repeat(2):
        step(x, y)
    trial.end()
    assert trial.evidence("jit_compile") == ("verified", "")
    assert trial.loops.activity() == before + 2, "the script's trace and what was compiled"
    assert (trial.steps, trial.samples) == (10, 100)


def test_a_flag_on_a_traced_function_is_no_compilation(begin: Begin) -> None:
    """The first false claim."""
    trial = begin({"jit_compile": True})
    trial.session.hand_over("jit_compile")
    step = tf.function(Net().step)
    for number, (x, y) in enumerate(_data(10).repeat(2)):
        step(x, y)
        if number == 2:
            step._jit_compile = True
    trial.end()
    assert trial.evidence("jit_compile")[0] == "contradicted"


def test_xla_that_the_script_asks_for_is_as_written(begin: Begin) -> None:
    trial = begin()
    step = tf.function(Net().step, jit_compile=True)
    for x, y in _data(10).repeat(2):
        step(x, y)
    assert trial.end()["as_written"]["jit_compile"] is True
    trial = begin({"jit_compile": False})
    step = tf.function(Net().step, jit_compile=True)
    for x, y in _data(10).repeat(2):
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
        for x, _ in _data():
            step(x)
    failure = trial.log.of("failure")[0]
    assert failure["reason"] == "compile-failure"
    assert "AsString" in failure["detail"]
    assert len(failure["detail"].splitlines()) == 1


def test_an_error_of_the_scripts_own_stays_its_own(begin: Begin) -> None:
    trial = begin({"jit_compile": True})
    net = Net()
    step = tf.function(net.step)
    x, y = next(iter(_data()))
    step(x, y)
    with pytest.raises(ValueError, match="expected axis -1") as caught:
        step(x[:, :7], y)
    assert "XLA" not in str(caught.value)
    assert not trial.log.of("failure")


def test_an_optimizer_that_takes_over_is_counted(begin: Begin) -> None:
    trial = begin()
    first, second = Net(), Net()
    x, y = next(iter(_data()))
    for _ in range(5):
        first.step(x, y)
    for _ in range(120):
        second.step(x, y)
    assert 60 < trial.steps <= 125


def test_adapted_are_the_training_datasets_alone(begin: Begin) -> None:
    """And what the watch on datasets is told of them."""

    class Datasets:
        def __init__(self) -> None:
            self.adapted: list[Any] = []
            self.sizes: list[int] = []
            self.met: list[Any] = []
            self.fed = 0

        def adapt(self, dataset: Any) -> Any:
            self.adapted.append(dataset)
            return dataset.unbatch().batch(25)

        def meet(self, dataset: Any) -> None:
            self.met.append(dataset)

        def saw_batch(self, count: int) -> None:
            self.sizes.append(count)

        def fed_by(self, iterator: Any) -> None:
            self.fed += 1

    train, validation = _data(10), _data(10)

    def run(datasets: Datasets, **knowledge: Any) -> Any:
        trial = begin({"batch_size": 25} if knowledge else {}, datasets=datasets, **knowledge)
        net = Net()
        for _ in range(2):
            for x, y in train:
                net.step(x, y)
            for x, y in validation:
                net.score(x, y)
        return trial

    known: dict[str, Any] = {}
    watches = [Datasets(), Datasets()]
    for watch in watches:  # both from the same line, which is part of a dataset's name
        trial = run(watch, **known)
        known = {"training_loaders": trial.end()["training_loaders"]}
        assert len(known["training_loaders"]) == 1
    assert watches[0].adapted == []
    assert watches[0].met == [train]
    assert watches[0].sizes == [10] * 10
    assert watches[1].adapted == [train, train]
    assert watches[1].sizes == [25] * 4
    assert watches[1].fed == 1
    assert (trial.steps, trial.samples) == (4, 2 * SAMPLES)
