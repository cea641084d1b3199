"""A script trains to the same weights under the child as under plain Python, also with knobs that change no sample."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

TRAIN = """
    import hashlib, sys
    import keras, numpy
    import tensorflow as tf
    keras.utils.set_random_seed(3)
    tf.config.experimental.enable_op_determinism()
    chance = numpy.random.default_rng(0)
    x, y = chance.integers(0, 255, (600, 16), dtype="uint8"), chance.integers(0, 3, 600)
    layers = keras.layers
    model = keras.Sequential([keras.Input((16,)), layers.Dense(32, "relu"), layers.Dropout(0.2), layers.Dense(3)])
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(0.01)
    def scaled(a, b):
        return tf.cast(a, tf.float32) / 255.0, b
    rows = tf.data.Dataset.from_tensor_slices((x, y)).map(scaled).shuffle(200, seed=5).batch(32)
    if sys.argv[1] == "loop":
        @tf.function
        def step(a, b):
            with tf.GradientTape() as tape:
                loss = losses(b, model(a, training=True))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss
        for epoch in range(3):
            for a, b in rows:
                step(a, b)
    else:
        model.compile(optimizer, losses, metrics=["accuracy"])
        arrays = (x.astype("float32") / 255.0, y)
        given = (rows,) if sys.argv[1] == "dataset" else arrays
        # Not on a part of rows: each pass over a shuffle moves its seed on, also for those who share it.
        model.fit(*given, epochs=3, verbose=0, validation_data=arrays)
    parts = [w.tobytes() for w in model.get_weights()]
    print("weights", hashlib.sha256(b"".join(parts)).hexdigest())
"""
KINDS = ("arrays", "dataset", "loop")
EACH = f"""
    import sys
    for kind in {KINDS}:
        sys.argv[1:] = [kind]
        exec(compile(open("train.py").read(), "train.py", "exec"), {{"__name__": "__main__"}})
"""
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1}
SAME_SAMPLES = {"parallel_calls": 2, "prefetch": 4, "vectorized_map": True}


def weights(output: str) -> list[str]:
    """Of each training that was told."""
    return re.findall(r"weights (\w+)", output)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """The weights of each kind under plain Python: all are trained in one process, each from its own seeds."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "train.py").write_text(textwrap.dedent(TRAIN))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EACH)], cwd=folder, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    told = weights(done.stdout)
    assert len(told) == len(KINDS), done.stdout + done.stderr
    return {kind: [digest] for kind, digest in zip(KINDS, told, strict=True)}


@pytest.mark.parametrize("kind", ["arrays", "dataset", "loop"])
@pytest.mark.slow
def test_to_be_measured_changes_no_weight(
    kind: str, plain: Mapping[str, list[str]], write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    measured = run_child(write_script(TRAIN), argv=(kind,), window=WHOLE)
    assert measured.facts["steps"] == 3 * 19
    assert weights(measured.output) == plain[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dataset", "loop"])
def test_knobs_that_change_no_sample_change_no_weight(
    kind: str, plain: Mapping[str, list[str]], write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    baseline = run_child(write_script(TRAIN), argv=(kind,), window=WHOLE)
    knowledge = {**baseline.facts, "framework": "keras"}
    turned = run_child(write_script(TRAIN), SAME_SAMPLES, argv=(kind,), window=WHOLE, knowledge=knowledge)
    changed = {record["knob"]: record["sites_changed"] for record in turned.of("knob")}
    assert changed == dict.fromkeys(SAME_SAMPLES, 1), turned.of("knob")
    assert weights(turned.output) == plain[kind]
