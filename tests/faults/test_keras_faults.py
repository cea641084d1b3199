"""Keras scripts that fail: by their own fault they show their own traceback, and ours is in none of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

TRAIN = """
    import os, signal, sys
    import keras, numpy
    import tensorflow as tf
    fault = sys.argv[1]
    def rows():
        for number in range(10_000):
            if fault == "data" and number > 200:
                raise ValueError("row 200 is broken")
            yield numpy.full(4, number, "float32"), numpy.float32(number)
    kinds = (tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.float32))
    batches = tf.data.Dataset.from_generator(rows, output_signature=kinds).batch(8)
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch < 30:
                return
            if fault == "callback":
                raise RuntimeError("the script's own callback fails")
            if fault == "exit":
                sys.exit(7)
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mae")
    if fault == "graph":
        words = keras.Sequential([keras.Input((4,), dtype="int32"), keras.layers.Embedding(3, 2)])
        words.compile("sgd", "mae")
        words.fit(numpy.full((64, 4), 7), numpy.zeros((64, 4, 2)), verbose=0)
    if fault == "shape":
        model.fit(numpy.zeros((64, 5), "float32"), numpy.zeros(64), verbose=0)
    model.fit(batches, verbose=0, callbacks=[Fails()])
"""
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("data", "row 200 is broken"),
        pytest.param("callback", "the script's own callback fails", marks=pytest.mark.slow),
        pytest.param("shape", "incompatible", marks=pytest.mark.slow),
        pytest.param("graph", "= 7 is not in [0, 3)", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_scripts_own_error_is_told_as_python_tells_it(
    write_script: Callable[..., Path], run_child: Callable[..., Any], fault: str, told: str
) -> None:
    run = run_child(write_script(TRAIN), argv=(fault,), window=WHOLE)
    assert run.returncode == 1
    assert told in run.output
    assert "train.py" in run.output
    assert "tuner/child" not in run.output, run.output[-3000:]
    assert run.of("exit")[-1]["code"] == 1


@pytest.mark.parametrize(("fault", "status"), [pytest.param("exit", 7, marks=pytest.mark.slow), ("kill", -9)])
def test_a_script_that_ends_early_leaves_what_was_measured(
    write_script: Callable[..., Path], run_child: Callable[..., Any], fault: str, status: int
) -> None:
    run = run_child(write_script(TRAIN), argv=(fault,), window={**WHOLE, "block_s": 0.0})
    assert run.returncode == status
    assert sum(block["steps"] for block in run.of("block")) >= 25
