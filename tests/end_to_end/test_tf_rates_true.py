"""Rates that are true under TensorFlow and Keras: against what the script can keep up, with a real tf.data pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rates import measured, naive

Run = Callable[..., Any]
Write = Callable[..., Path]
LOAD_S = 0.04
TRUTH = 4 / LOAD_S
"""Samples that the data give a second: sleeping takes at least as long as it says."""

START = """
    import time
    import keras, numpy, tensorflow as tf

    def load(place):
        time.sleep(LOAD_S)
        return numpy.ones((4, 4), "float32"), numpy.ones((4, 1), "float32")

    def shaped(x, y):
        return tf.ensure_shape(x, (4, 4)), tf.ensure_shape(y, (4, 1))

    def loaded(place):
        return shaped(*tf.numpy_function(load, [place], (tf.float32, tf.float32)))

    batches = tf.data.Dataset.range(100_000).map(loaded).prefetch(PREFETCH)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    def computed(step):
        time.sleep(COMPUTE_S if step else FIRST_S)
"""
FIT = """
    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            computed(batch)

    model.compile("sgd", "mse")
    model.fit(batches, epochs=10, verbose=0, callbacks=[Slow()])
"""
LOOP = """
    optimizer = keras.optimizers.SGD()
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    for number, (x, y) in enumerate(batches):
        step(x, y)
        computed(number)
"""
PY_DATASET = """
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 100_000
        def __getitem__(self, place):
            time.sleep(LOAD_S)
            return load(place)
    batches = Batches(workers=2, max_queue_size=PREFETCH)
"""


def script(write: Write, text: str, **values: object) -> Path:
    """The script with its figures filled in; ``FIRST_S`` is what the first step takes, as a compilation does."""
    for name, value in {"PREFETCH": 64, "COMPUTE_S": 0.008, "FIRST_S": 2.8, "LOAD_S": LOAD_S, **values}.items():
        text = text.replace(name, str(value))
    return write(text)


@pytest.mark.slow  # of PyTorch: test_torch_rates_true.py
@pytest.mark.timed
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(START + FIT, id="fit"),
        pytest.param(START + LOOP, id="loop"),
        pytest.param(START + PY_DATASET + FIT, id="PyDataset"),
    ],
)
def test_a_queue_that_a_slow_start_filled_does_not_flatter(run_child: Run, write_script: Write, text: str) -> None:
    """The data come at 25 batches/s, and the loop takes up to 90: some 60 lie ready after a slow first step."""
    ran = run_child(script(write_script, text), window={"max_s": 0.4, "min_s": 0.4})
    found = measured(ran)
    window = [b for b in ran.of("block") if b["phase"] == "window"]
    assert naive(ran) > 1.15 * TRUTH, "the window lies within what was ready"
    assert window[0]["ready_before"] > window[-1]["ready_after"]
    assert 0.6 * TRUTH < found.rate < 1.1 * TRUTH
    assert found.queue_share > 0.1


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_queue_of_tf_data_is_seen_on_the_other_backends(run_child: Run, write_script: Write, backend: str) -> None:
    """Its batches pass through Python, and nothing was seen of what lay ready before."""
    text = START.replace("import time", f"import os\n    os.environ['KERAS_BACKEND'] = '{backend}'\n    import time", 1)
    ran = run_child(script(write_script, text + FIT), window={"max_s": 0.4, "min_s": 0.4})
    window = [b for b in ran.of("block") if b["phase"] == "window"]
    assert naive(ran) > 1.15 * TRUTH and window[0]["ready_before"] > window[-1]["ready_after"]
    assert 0.6 * TRUTH < measured(ran).rate < 1.1 * TRUTH
    assert measured(ran).queue_share > 0.1
    assert not any("can't be seen" in remark for remark in ran.facts["remarks"])


GENERATED = """
    import os
    os.environ["KERAS_BACKEND"] = "BACKEND"
    import keras, numpy, tensorflow as tf
    elements = tf.data.Dataset.range(800).prefetch(400)

    def batches():
        while True:
            rows = []
            for element in elements:
                rows.append([float(element) / 800])
                if len(rows) == 8:
                    yield numpy.array(rows), numpy.array(rows)
                    rows = []

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(batches(), epochs=1, steps_per_epoch=400, verbose=0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_what_a_generator_reads_ahead_is_no_queue_of_batches(run_child: Run, write_script: Write, backend: str) -> None:
    """Its elements were taken for batches of 8, and a window that made some of these seemed to live on a stock."""
    window = {"max_s": 100, "min_s": 100, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.005}
    ran = run_child(write_script(GENERATED.replace('"BACKEND"', repr(backend))), window=window)
    assert ran.returncode == 0, ran.output
    assert {ready for block in ran.of("block") for ready in (block["ready_before"], block["ready_after"])} == {None}


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_so_it_is_on_the_other_backends(run_child: Run, write_script: Write, backend: str) -> None:
    """There Keras begins the data twice: what the first beginning had ready is taken before anything is made anew."""
    chosen = f"import os\n    os.environ['KERAS_BACKEND'] = '{backend}'\n    import time"
    text = START.replace("import time", chosen, 1) + PY_DATASET + FIT
    window = {"max_s": 0.4, "min_s": 0.4, "warmup_steps": 80, "warmup_s": 0}
    ran = run_child(script(write_script, text, COMPUTE_S=0.002), window=window)
    found = measured(ran)
    assert found.queue_share > 0.1 and 0.4 * TRUTH < found.rate < 0.6 * naive(ran)
    assert found.low < TRUTH < found.high


@pytest.mark.timed
@pytest.mark.slow
def test_a_full_queue_of_data_that_keep_up_changes_nothing(run_child: Run, write_script: Write) -> None:
    ran = run_child(script(write_script, START + FIT, PREFETCH=8, COMPUTE_S=0.03, FIRST_S=0.5, LOAD_S=0.01))
    found = measured(ran)
    assert found.queue_share < 0.03
    assert found.rate == pytest.approx(naive(ran), rel=0.03)
    assert any(block["ready_after"] for block in ran.of("block"))


UNSEEN = """
    options = tf.data.Options()
    options.autotune.enabled = False
    batches = batches.with_options(options)
"""


@pytest.mark.timed
@pytest.mark.slow
def test_where_a_queue_cannot_be_seen_the_window_is_longer_and_says_so(run_child: Run, write_script: Write) -> None:
    path = script(write_script, START + UNSEEN + FIT, PREFETCH=16, FIRST_S=0.5, LOAD_S=0.02)
    ran = run_child(path, window={"max_s": 0.4, "min_s": 0.4})
    window = [b for b in ran.of("block") if b["phase"] == "window"]
    assert all(block["ready_after"] is None for block in window)
    assert sum(block["seconds"] for block in window) > 0.7, "48 steps take longer than twice the cap"
    assert any("prefetch 16 batches" in remark and "can't be seen" in remark for remark in ran.facts["remarks"])
    assert ran.facts["unseen_samples"] == 16 * 4


@pytest.mark.slow
def test_of_a_stock_that_tensorflow_chooses_itself_nothing_is_promised(run_child: Run, write_script: Write) -> None:
    """It was told that windows are longer for it. How deep it is nobody knows."""
    path = script(write_script, START + UNSEEN + FIT, PREFETCH=-1, FIRST_S=0.1, LOAD_S=0.01)
    ran = run_child(path, window={"max_s": 0.2, "min_s": 0.2})
    [remark] = [each for each in ran.facts["remarks"] if "can't be seen" in each]
    assert "windows are longer" not in remark and remark.endswith("nothing is taken off a rate for it")
    assert ran.facts["unseen_samples"] == 0


def test_what_was_seen_is_not_called_unseen_once_the_script_has_ended(run_child: Run, write_script: Write) -> None:
    """Its iterators are gone by then: it was told that its queue can't be seen."""
    short = START + LOOP.replace("enumerate(batches)", "enumerate(batches.take(20))")
    path = script(write_script, short, LOAD_S=0.01, FIRST_S=0)
    ran = run_child(path, window={"max_s": 100, "min_s": 100, "warmup_s": 0.0, "warmup_steps": 1})
    assert ran.facts["unseen_samples"] == 0 and not any("can't be seen" in each for each in ran.facts["remarks"])
