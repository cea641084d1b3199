"""Loops that scripts write themselves, in this very process: what is a step, a sample and a loss."""

# mypy: disable-error-code="untyped-decorator, name-defined, misc"
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.in_process import ENDLESS
from support.tf_here import tf
from support.tf_networks import SAMPLES, Gan, Net, batches
from support.tf_trials import STEPS_ALONE, begin

from tuner.child.session import StopTrial
from tuner.child.tensorflow.evidence import EAGER

__all__ = ["begin"]

pytestmark = pytest.mark.filterwarnings("ignore")
Begin = Callable[..., Any]


# steps and samples


@pytest.mark.parametrize(
    "traced", [pytest.param(False, marks=pytest.mark.slow), True], ids=["eager", "tf.function"]
)
def test_steps_and_samples_of_a_loop_with_validation(begin: Begin, traced: bool) -> None:
    trial = begin()
    net, train, validation = Net(), batches(), batches(25)
    step, score = (tf.function(net.step), tf.function(net.score)) if traced else (net.step, net.score)
    for _ in range(3):
        for x, y in train:
            step(x, y)
        for x, y in validation:
            score(x, y)
    facts = trial.end()
    assert (trial.steps, trial.samples) == (21, 3 * SAMPLES)
    assert facts["unit"] == "samples"
    assert [key.split(".py.")[0] for key in facts["training_loaders"]] == ["test_tf_loops"]
    assert facts["as_written"]["batch_size"] == 8
    assert trial.set_apart() >= 2
    assert facts["left_out"].get("jit_compile", "") == ("" if traced else "the training step isn't a tf.function")
    assert any("runs eagerly" in remark for remark in facts["remarks"]) is not traced


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "tf.function"])
def test_the_loss_of_a_screens_block_is_that_of_all_its_steps(begin: Begin, traced: bool) -> None:
    trial = begin(request={"seed": 1, "window": {**ENDLESS, "block_s": 1e9}})
    net = Net()
    step = tf.function(net.step) if traced else net.step
    x, y = next(iter(batches()))
    losses = [float(step(x, y)) for _ in range(3)]
    trial.session.clock.synchronize()
    # The clock starts with the first step's end, which is a look at the loss, too.
    assert trial.loops.take_loss() == pytest.approx(sum(losses[1:]) / 2, rel=1e-5)
    assert trial.loops.take_loss() is None


@pytest.mark.parametrize("side", ["compute", "loader"])
def test_the_sides_of_a_loop_are_counted_in_samples(begin: Begin, side: str) -> None:
    """What computes is held against what loads."""
    known: list[str] = []
    for probe in (None, side):
        window = {**ENDLESS, "block_s": 0.0, "until_samples": 100}
        trial = begin(training_loaders=known, request={"probe": probe, "window": window})
        net, data, seen = Net(), batches(), list[bytes]()
        before = [weight.copy() for weight in net.model.get_weights()]
        step = tf.function(net.step)
        with pytest.raises(StopTrial):
            for x, y in data.repeat():
                step(x, y)
                seen.append(x.numpy().tobytes())
        known = known or trial.log.of("facts")[0]["training_loaders"]
        assert trial.samples == pytest.approx(100, abs=20)
        assert trial.steps == pytest.approx(trial.samples / 8, abs=3)
        same = all((a == b).all() for a, b in zip(before, net.model.get_weights(), strict=True))
        assert same is (probe == "loader")
        assert len(set(seen)) == {None: len(seen), "compute": 1, "loader": 0}[probe]


@pytest.mark.parametrize("side", [None, "loader"])
def test_reading_the_size_of_a_batch_is_no_wait_for_data(
    begin: Begin, side: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = begin()
    data, step = batches(), Net().step
    for x, y in data:
        step(x, y)
    known = trial.end()["training_loaders"]
    trial = begin(training_loaders=known, request={"probe": side, "window": {**ENDLESS, "until_samples": 40}})
    size, watch = trial.loops.iterations._samples, trial.loops.iterations

    def slow(source: object, element: object) -> int:
        time.sleep(0.2)
        return int(size(source, element))

    monkeypatch.setattr(watch, "_samples", slow)
    with pytest.raises(StopTrial):
        for x, y in data.repeat():
            step(x, y)
    blocks = trial.log.of("block")
    assert sum(block["wait_s"] for block in blocks) < 0.1 * sum(block["steps"] for block in blocks)


def test_a_folder_of_the_users_may_be_called_keras(begin: Begin) -> None:
    source = "def train(step, batches):\n    for x, y in batches:\n        step(x, y)\n"
    namespace: dict[str, Any] = {}
    exec(compile(source, "/home/someone/keras/tensorflow/python/train.py", "exec"), namespace)
    trial = begin()
    namespace["train"](tf.function(Net().step), batches(10).repeat(2))
    assert [key.split(".py.")[0] for key in trial.end()["training_loaders"]] == ["train"]


def test_a_whole_epoch_in_one_function_is_counted_by_its_graph(begin: Begin) -> None:
    trial = begin()
    net, train, validation = Net(), batches(), batches(25)

    @tf.function
    def epoch(data: Any) -> None:
        for x, y in data:
            net.step(x, y)

    @tf.function
    def score(data: Any) -> Any:
        total = 0.0
        for x, y in data:
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
    assert facts["wait_is_unseen"]
    assert facts["remarks"] == ["the wait for data can't be seen: the training function fetches its batches itself"]


def test_raw_variables_without_an_optimizer(begin: Begin) -> None:
    weights = tf.Variable(tf.zeros([8, 1]))

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights - tf.cast(y[:, None], tf.float32)) ** 2)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    trial = begin()
    for _ in range(3):
        for x, y in batches():
            step(x, y)
    trial.end()
    # An optimizer may follow the first gradient, so it isn't a step yet.
    assert (trial.steps, trial.samples) == (20, 3 * SAMPLES)

    train = batches()

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
    assert facts["left_out"]["prefetch"] == facts["left_out"]["batch_size"]


def test_several_steps_a_call_from_an_iterator(begin: Begin) -> None:
    trial = begin()
    net, iterator = Net(), iter(batches(10).repeat())

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

    for x, y in batches(10).repeat(2):
        net.optimizer.apply_gradients(zip(gradients(x, y), net.model.trainable_variables, strict=True))
    trial.end()
    assert (trial.steps, trial.samples) == (10, 100)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "tf.function"])
def test_accumulated_gradients_are_one_step(begin: Begin, traced: bool) -> None:
    trial = begin()
    net = Net(gradient_accumulation_steps=2)
    step = tf.function(net.step) if traced else net.step
    for x, y in batches(10).repeat(2):
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

    for x, y in batches():
        salient(x, y)
    assert trial.steps == 0
    assert not trial.loops.trained


def test_it_stands_aside_while_keras_fits(begin: Begin) -> None:
    trial = begin()
    net = Net()
    net.model.compile(net.optimizer, net.loss)
    trial.loops.fitting = True
    net.model.fit(batches(), verbose=0)
    assert trial.steps == 0
    assert not trial.loops.functions.training
    assert not list(trial.loops.iterations.sources)


# several networks


@pytest.mark.parametrize(
    "traced", [pytest.param(False, marks=pytest.mark.slow), True], ids=["eager", "tf.function"]
)
def test_two_tapes_and_two_optimizers_are_one_step(begin: Begin, traced: bool) -> None:
    trial = begin()
    gan = Gan(None)
    step = tf.function(gan.step) if traced else gan.step
    for x, _ in batches(10).repeat(3):
        step(x)
    facts = trial.end()
    assert (trial.steps, trial.samples) == (15, 150)
    # A number of rows that is read off the batch grows with it.
    assert "batch_size" not in facts["left_out"]


def test_an_optimizer_that_takes_over_is_counted(begin: Begin) -> None:
    trial = begin()
    first, second = Net(), Net()
    x, y = next(iter(batches()))
    for _ in range(5):
        first.step(x, y)
    for _ in range(120):
        second.step(x, y)
    assert 60 < trial.steps <= 125


def test_all_steps_of_each_clients_own_optimizer_count(begin: Begin) -> None:
    trial = begin()
    x, y = tf.random.normal([6, 8]), tf.zeros([6], tf.int32)
    for _ in range(3):
        client = Net()
        for _ in range(5):
            client.step(x, y)
    facts = trial.end()
    assert (trial.steps, facts["unit"], facts["remarks"]) == (15, "steps", [STEPS_ALONE, EAGER])


def test_the_steps_of_functions_that_train_one_after_another_count(begin: Begin) -> None:
    trial = begin()
    policy, value = Net(), Net()
    x, y = tf.random.normal([6, 8]), tf.zeros([6], tf.int32)

    @tf.function
    def train_policy() -> None:
        policy.step(x, y)

    @tf.function
    def train_value() -> None:
        value.step(x, y)

    for _ in range(3):
        for _ in range(6):
            train_policy()
        for _ in range(6):
            train_value()
    facts = trial.end()
    assert trial.steps == 36
    assert trial.set_apart() <= 1, "the call that was traced"
    assert facts["remarks"] == [
        "train_policy, train_value train one after another: the steps of each count", STEPS_ALONE
    ]


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

        def is_dataset(self, dataset: Any) -> bool:
            return hasattr(dataset, "element_spec")

        def made_by(self, dataset: Any) -> str:
            return type(dataset).__name__

        def batch_sizes(self, dataset: Any) -> None:
            return None

        def meet(self, dataset: Any) -> None:
            self.met.append(dataset)

        def saw_batch(self, count: int) -> None:
            self.sizes.append(count)

        def fed_by(self, iterator: Any) -> None:
            self.fed += 1

    train, validation = batches(10), batches(10)

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
