"""Loops on TensorFlow that slice their batches themselves: they count what they train on, and so does the trial."""

# mypy: disable-error-code="untyped-decorator, name-defined, misc"
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.tf_here import tf
from support.tf_networks import Gan, Net
from support.tf_trials import begin

__all__ = ["begin"]
pytestmark = pytest.mark.filterwarnings("ignore")
Begin = Callable[..., Any]
SAMPLES = 300
TRAIN = """
    import argparse
    import tensorflow as tf

    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=20)
    size = parser.parse_args().batch_size
    x = tf.random.normal([1000, 8])
    weights = tf.Variable(tf.zeros([8, 1]))

    @tf.function(reduce_retracing=True)
    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch @ weights - 1.0))
        weights.assign_sub(0.001 * tape.gradient(loss, weights))
        return loss

    trained = 0
    try:
        while True:
            for start in range(0, len(x), size):
                batch = x[start : start + size]
                trained += len(batch)
                step(batch)
    except BaseException:
        print("trained on", trained)
        raise
"""


@pytest.mark.slow
def test_a_real_trial_counts_what_its_script_trained_on(
    run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    script = write_script(TRAIN)
    known: dict[str, Any] = {"placeholders": ["batch_size"]}
    found = {}
    for size in (20, 520, 1900):
        config = {} if size == 20 else {"batch_size": size}
        run = run_child(script, config, argv=("--batch-size", str(size)), knowledge=known)
        own = next(line for line in run.output.splitlines() if line.startswith("trained on"))
        assert (run.facts["unit"], run.facts["samples"]) == ("samples", float(own.split()[2])), run.output
        if not config:
            known |= {key: run.facts[key] for key in ("framework", "unit", "row_places")}
            known["as_written"] = {"batch_size": 20}
        else:
            found[size] = run.evidence("batch_size")
    assert found == {520: "verified", 1900: "contradicted"}


# the same in this process, for loops of many kinds


class Loop:
    """A loop over 300 samples. ``trained``: the samples that it trained on, by its own count."""

    def __init__(self) -> None:
        self.trained = 0
        self.x = tf.random.normal([SAMPLES, 8])
        self.y = tf.random.uniform([SAMPLES], 0, 3, tf.int32)
        self.net = Net()
        self.setup()

    def setup(self) -> None:
        """What trains."""
        self.step = tf.function(self.net.step, reduce_retracing=True)

    def train(self, start: int, size: int) -> None:
        """One step."""
        self.step(self.x[start : start + size], self.y[start : start + size])

    def run(self, size: int, epochs: int = 4) -> Any:
        """Trains in batches of so many."""
        for _ in range(epochs):
            for start in range(0, SAMPLES, size):
                self.trained += min(size, SAMPLES - start)
                self.train(start, size)
        return self


class Arrays(Loop):
    """NumPy's, by name."""

    def setup(self) -> None:
        super().setup()
        self.x, self.y = self.x.numpy(), self.y.numpy()

    def train(self, start: int, size: int) -> None:
        self.step(x=self.x[start : start + size], y=self.y[start : start + size])


class Eager(Loop):
    """A plain tape, and scores before some steps."""

    def setup(self) -> None:
        self.step = self.net.step

    def train(self, start: int, size: int) -> None:
        if not start:
            self.net.score(tf.random.normal([77, 8]), self.y[:77])
        super().train(start, size)


class AppliesItself(Loop):
    """A function takes the gradients, and the script applies them."""

    def setup(self) -> None:
        net = self.net

        @tf.function(reduce_retracing=True)
        def gradients(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = net.loss(y, net.model(x))
            return tape.gradient(loss, net.model.trainable_variables)

        def step(x: Any, y: Any) -> None:
            net.optimizer.apply_gradients(zip(gradients(x, y), net.model.trainable_variables, strict=True))

        self.step = step


class Accumulates(Loop):
    """A Keras optimizer that updates with every second batch."""

    def setup(self) -> None:
        self.net = Net(gradient_accumulation_steps=2)
        self.step = self.net.step


class Adversaries(Loop):
    """Two networks that train each other, eagerly."""

    def setup(self) -> None:
        gan = Gan(None)
        self.step = lambda x, y: gan.step(x)


class TimeFirst(Loop):
    """Samples along the second dimension of what the step is given."""

    def setup(self) -> None:
        self.sequences = tf.random.normal([7, SAMPLES, 8])
        step = tf.function(lambda x, y: self.net.step(x[0], y), reduce_retracing=True)
        self.step = step

    def train(self, start: int, size: int) -> None:
        self.step(self.sequences[:, start : start + size], self.y[start : start + size])


KINDS = [Loop, Eager]
MORE_KINDS = [TimeFirst, Arrays, AppliesItself, Adversaries]


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    known = {key: facts[key] for key in ("unit", "row_places")}
    return {**known, "framework": "keras", "placeholders": ["batch_size"], "as_written": {"batch_size": 20}}


@pytest.mark.parametrize(
    "kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE_KINDS)],
    ids=[kind.__name__ for kind in (*KINDS, *MORE_KINDS)],
)  # fmt: skip
def test_what_is_counted_is_what_was_trained_on(begin: Begin, kind: type[Loop]) -> None:
    """A batch size that divides the data, one that leaves a remainder, and one that is larger than the data."""
    trial = begin(placeholders=["batch_size"], as_written={"batch_size": 20})
    loop = kind().run(20)
    written = trial.end()
    assert (written["unit"], trial.samples) == ("samples", loop.trained)
    found = {}
    for size in (160, 1000):
        trial = begin({"batch_size": size}, **_known(written))
        loop = kind().run(size)
        assert (trial.end()["unit"], trial.samples) == ("samples", loop.trained)
        found[size] = trial.evidence("batch_size")[0]
    assert found == {160: "verified", 1000: "contradicted"}


def test_batches_that_a_step_only_adds_to_its_gradients_are_counted(begin: Begin) -> None:
    trial = begin(placeholders=["batch_size"], as_written={"batch_size": 20})
    loop = Accumulates().run(20)
    assert trial.end()["unit"] == "samples"
    assert (trial.steps, trial.samples) == (30, loop.trained)


def test_what_a_step_takes_for_itself_is_counted_in_steps(begin: Begin) -> None:
    """A function that is given no arrays: what an argument says is no proof of what it trains on."""
    trial = begin(placeholders=["batch_size"], as_written={"batch_size": 20})
    net, x, y = Net(), tf.random.normal([SAMPLES, 8]), tf.zeros([SAMPLES], tf.int32)
    step = tf.function(lambda start: net.step(x[start : start + 20], y[start : start + 20]))
    for _ in range(9):
        step(tf.constant(0))
    facts = trial.end()
    assert (facts["unit"], trial.samples) == ("steps", 0)
    assert any("batches are said to hold 20 samples" in remark for remark in facts["remarks"])


def test_a_data_set_in_a_function_is_counted_once(begin: Begin) -> None:
    """It counts its batches itself, whatever an argument says of them."""
    trial = begin(placeholders=["batch_size"], as_written={"batch_size": 20})
    net = Net()
    data = tf.data.Dataset.from_tensor_slices((numpy.zeros([50, 8], "float32"), numpy.zeros([50], "int32"))).batch(20)

    @tf.function
    def epoch(batches: Any) -> None:
        for x, y in batches:
            net.step(x, y)

    for _ in range(4):
        epoch(data)
    trial.end()
    assert (trial.steps, trial.samples) == (12, 200)


def test_the_answer_is_to_bind_an_option_for_their_size(begin: Begin) -> None:
    """Of the other knobs there is nothing to bind."""
    trial = begin()
    Loop().run(30)
    left_out = trial.end()["left_out"]
    assert left_out["batch_size"].endswith("bind it, as in -- --batch-size={batch_size}")
    assert left_out["prefetch"] == "no tf.data dataset feeds the training steps"


def test_why_steps_are_counted_is_told_where_no_argument_names_the_batch(begin: Begin) -> None:
    trial = begin()
    net = Net()
    step = tf.function(lambda: net.step(tf.random.normal([20, 8]), tf.zeros([20], tf.int32)))
    for _ in range(9):
        step()
    facts = trial.end()
    assert facts["unit"] == "steps"
    [why] = [remark for remark in facts["remarks"] if remark.startswith("steps are counted, and not samples: ")]
    assert "tuner.report" in why
