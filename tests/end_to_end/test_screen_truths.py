"""Scripts of which it is known what a screen may say: real runs of them, judged as in a study."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.campaign import GAN, LANGUAGE_MODEL, LEARNS, POLICY, START

from tuner.analysis.accuracy import AccuracyLimits, is_settled, judge, untold
from tuner.analysis.checks import Pair
from tuner.analysis.learning import Descent, descent_of
from tuner.analysis.movement import MOVEMENT
from tuner.analysis.stats import Noninferiority
from tuner.devices.cpu import cpu_device
from tuner.formatting import screened_text
from tuner.model import BASELINE, Config, Outcome, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest, screen_window

FASTER = Config(optimizer="foreach")
KERAS = """
    import os, sys
    os.environ["KERAS_BACKEND"] = "BACKEND"
    import keras, numpy
    x = numpy.random.default_rng(0).normal(size=(2048, 16)).astype("float32")
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
    factor = keras.Variable(1.0, trainable=False, name="factor")

    class Annealed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            factor.assign(0.97 * factor)
"""
KERAS_FIT = """
    model.factor = factor  # part of the model's state
    loss = lambda y, p: factor * keras.ops.mean(keras.ops.square(y - p))
    model.compile(keras.optimizers.SGD(RATE), loss)
    model.fit(x, x[:, :3].sum(1, keepdims=True), batch_size=32, epochs=1000, verbose=0, callbacks=[Annealed()])
"""
KERAS_ON_BATCH = KERAS_FIT.partition("model.fit")[0] + """
    y = x[:, :3].sum(1, keepdims=True)
    for step in range(100000):
        rows = slice(32 * (step % 64), 32 * (step % 64 + 1))
        model.train_on_batch(x[rows], y[rows])
        factor.assign(0.97 * factor)
"""
TAPE_LOOP = """
    import tensorflow as tf
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :3].sum(1, keepdims=True))).batch(32).repeat()

    @tf.function
    def step(a, b):
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_mean(tf.square(model(a) - b))
        for variable, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
            variable.assign_sub(RATE * gradient)

    for a, b in data:
        step(a, b)
        factor.assign(0.97 * factor)
"""
LIMITS = AccuracyLimits()
SAMPLES = 32 * 100
Run = Callable[..., Outcome]


@pytest.fixture
def run(write_script: Callable[..., Path], tmp_path: Path) -> Run:
    """Runs a script in a screen: with a config, on a seed."""
    runs = 0

    def once(script: str, config: Config = BASELINE, seed: int = 1, *, start: str = START, **parts: str) -> Outcome:
        nonlocal runs
        runs += 1
        text = textwrap.dedent(start) + textwrap.dedent(script)
        for name, code in {"FASTER_RATE": "RATE", "COEFFICIENT": "1.0", "RATE": "0.05", **parts}.items():
            text = text.replace(name, code)
        folder = tmp_path / "trials" / str(runs)
        folder.mkdir(parents=True)
        named = Script(str(write_script(text)), ())
        request = TrialRequest(folder, named, cpu_device(), config, window=screen_window(SAMPLES), seed=seed)
        outcome = ProcessRunner().run(request, threading.Event())
        assert outcome.complete, outcome
        return outcome

    return once


@pytest.mark.slow
def test_a_candidate_whose_weights_stand_still_fails_at_once_even_where_its_loss_comes_down(run: Run) -> None:
    """A coefficient that becomes smaller brings the loss down as well."""
    parts = {"COEFFICIENT": "next(factors)", "RATE": "0.0001", "FASTER_RATE": "0.0"}
    script = "import itertools\nfactors = (0.97 ** n for n in itertools.count())\n" + textwrap.dedent(LEARNS)
    pair = Pair(1, run(script, **parts), run(script, FASTER, **parts))
    assert descent_of([pair.baseline]) is descent_of([pair.candidate]) is Descent.DOWN
    assert is_settled(FASTER, [pair])
    result = judge(FASTER, [pair], LIMITS, SAMPLES)
    assert result.verdict is Noninferiority.FAIL
    assert f"{MOVEMENT} 0 times as written" in screened_text(result)


@pytest.mark.slow  # of PyTorch: below
@pytest.mark.parametrize(
    ("script", "backend"),
    [
        pytest.param(KERAS_FIT, "tensorflow", id="fit"),
        pytest.param(TAPE_LOOP, "tensorflow", id="loop"),
        pytest.param(TAPE_LOOP.replace("@tf.function", ""), "tensorflow", id="eager loop"),
        pytest.param(KERAS_ON_BATCH, "tensorflow", id="on batch"),
        pytest.param(KERAS_ON_BATCH, "torch", id="on batch, torch"),
        pytest.param(KERAS_FIT, "jax", id="jax"),
        pytest.param(KERAS_FIT, "torch", id="torch"),
    ],
)
def test_so_it_is_under_keras_and_in_loops_of_tensorflow(run: Run, script: str, backend: str) -> None:
    """Whatever applies the gradients: an optimizer of Keras', or the script itself."""
    start = textwrap.dedent(KERAS).replace("BACKEND", backend)
    pair = Pair(1, run(script, start=start, RATE="1e-5"), run(script, FASTER, start=start, RATE="0.0"))
    assert descent_of([pair.baseline]) is descent_of([pair.candidate]) is Descent.DOWN
    result = judge(FASTER, [pair], LIMITS, SAMPLES)
    assert result.verdict is Noninferiority.FAIL, screened_text(result)
    assert f"{MOVEMENT} 0 times as written" in screened_text(result)


@pytest.mark.slow  # unit/analysis/test_accuracy.py, of made-up losses
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(LEARNS.replace("RATE", "1e-6"), id="warm-up"),
        pytest.param(LANGUAGE_MODEL, id="language model at its start", marks=pytest.mark.slow),
        pytest.param(POLICY, id="policy gradient", marks=pytest.mark.slow),
    ],
)
def test_where_the_script_has_hardly_learned_no_config_can_be_judged(run: Run, script: str) -> None:
    baseline = run(script)
    result = untold(FASTER, [Pair(1, baseline, baseline)], LIMITS, SAMPLES)
    assert result is not None and result.verdict is Noninferiority.INCONCLUSIVE
    assert "to tell how a config learns" in result.reason and "--screen-samples" in result.would_decide


@pytest.mark.slow  # in one process: test_torch_own_batches.py
def test_a_gan_is_seen_whole_and_a_generator_that_stands_still_fails(run: Run) -> None:
    pair = Pair(1, run(GAN), run(GAN, FASTER))
    assert pair.baseline.measurement is not None
    sites = [(loss.site.partition("<")[2], loss.objective) for loss in pair.baseline.measurement.losses]
    assert len(sites) == 2, "what both call is told apart by who calls it"
    assert len({objective for _, objective in sites}) == 2, "each has an optimizer of its own"
    assert [change.optimizer for change in pair.baseline.measurement.weights] == ["Adam", "Adam"]
    assert descent_of([pair.baseline]) is not Descent.DOWN
    result = judge(FASTER, [pair], LIMITS, SAMPLES)
    assert result.verdict is Noninferiority.FAIL and "movement of the weights 0" in screened_text(result)
    nothing = untold(FASTER, [pair], LIMITS, SAMPLES)
    assert nothing is not None and nothing.would_decide


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "verdict"),
    [({}, Noninferiority.PASS), ({"FASTER_RATE": "0.02"}, Noninferiority.FAIL)],
    ids=["as well", "at less than half the pace"],
)
def test_a_candidate_is_judged_by_how_it_learns(run: Run, parts: dict[str, str], verdict: Noninferiority) -> None:
    pairs = [Pair(seed, run(LEARNS, seed=seed, **parts), run(LEARNS, FASTER, seed, **parts)) for seed in (1, 2, 3)]
    result = judge(FASTER, pairs, LIMITS, SAMPLES)
    assert result.verdict is verdict, screened_text(result)
    assert result.efficiency is not None
    assert (result.efficiency.low > 0.9) is (verdict is Noninferiority.PASS)
