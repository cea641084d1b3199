"""TensorFlow's MirroredStrategy over two logical processors: samples, losses and knobs of all replicas together."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}
ROWS, SIZE, EPOCHS = 250, 20, 3
SCRIPT = f"""
import sys
import tensorflow as tf
import keras

kind, rows, size, epochs = sys.argv[1], {ROWS}, {SIZE}, {EPOCHS}
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
x, y = tf.random.uniform([rows, 8]), tf.random.uniform([rows, 1])
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input([8]), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    trained = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.SUM)

def step(x, y):
    trained.assign_add(tf.cast(tf.shape(x)[0], tf.int64))
    with tf.GradientTape() as tape:
        losses = tf.reduce_sum((model(x) - y) ** 2, 1)
        own = tf.reduce_mean(losses) if kind == "mean" else tf.nn.compute_average_loss(losses, global_batch_size=size)
    optimizer.apply_gradients(zip(tape.gradient(own, model.trainable_variables), model.trainable_variables))
    return own

@tf.function
def on_replicas(batch):
    return strategy.reduce("MEAN" if kind == "mean" else "SUM", strategy.run(step, args=batch), axis=None)

if kind in ("loop", "mean"):
    for _ in range(epochs):
        for batch in strategy.experimental_distribute_dataset(data):
            print("loss", float(on_replicas(batch)).hex())
    print("trained on", int(trained.read_value()))
elif kind == "batches":
    model.compile(keras.optimizers.SGD(0.01), "mse")
    for _ in range(epochs):
        for x, y in data:
            print("loss", float(model.train_on_batch(x, y)).hex())
            model.reset_metrics()
else:
    given = (x, y) if kind == "arrays" else (data,)
    model.fit(*given, batch_size=size if kind == "arrays" else None, epochs=epochs, verbose=0)
    print("trained on", epochs * rows)
"""


# Keras' own fit under a strategy: test_keras_fit.py.
@pytest.mark.parametrize("kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("fit", "arrays")), "loop"])
def test_samples_and_batches_are_those_of_all_replicas(
    kind: str, run_child: Run, write_script: Callable[..., Path]
) -> None:
    script = write_script(SCRIPT)
    as_written = run_child(script, argv=(kind,), window=WHOLE)
    assert as_written.returncode == 0, as_written.output
    told = re.findall(r"^trained on (\d+)$", as_written.output, re.MULTILINE)
    facts = as_written.facts
    assert told == [str(int(facts["samples"]))] == [str(ROWS * EPOCHS)]
    assert (facts["unit"], facts["steps"], facts["devices"]) == ("samples", EPOCHS * -(-ROWS // SIZE), 2)
    assert facts["as_written"]["batch_size"] == SIZE
    known = {name: value for name, value in facts.items() if name not in ("kind", "t")}
    larger = run_child(script, {"batch_size": 2 * SIZE}, argv=(kind,), window=WHOLE, knowledge=known)
    assert larger.evidence("batch_size") == "verified", larger.output
    assert (larger.facts["steps"], larger.facts["samples"]) == (EPOCHS * -(-ROWS // (2 * SIZE)), ROWS * EPOCHS)


@pytest.mark.parametrize(
    "kind", ["loop", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("mean", "batches"))]
)
def test_losses_are_those_of_all_replicas(kind: str, run_child: Run, write_script: Callable[..., Path]) -> None:
    """The sum of what each has, by which a strategy's gradients go, or their mean where the script takes that."""
    ran = run_child(write_script(SCRIPT), argv=(kind,), window=WHOLE, seed=1)
    assert ran.returncode == 0, ran.output
    losses = [float.fromhex(loss) for loss in re.findall(r"^loss (\S+)$", ran.output, re.MULTILINE)]
    told = [record["value"] for record in ran.of("loss")]
    assert len(losses) == EPOCHS * -(-ROWS // SIZE)
    assert told == pytest.approx(losses[-len(told) :], rel=1e-6) and len(told) >= len(losses) - 1


@pytest.mark.parametrize(
    ("kind", "devices", "status"),
    [
        ("loop", 3, 2), pytest.param("fit", 3, 2, marks=pytest.mark.slow),
        pytest.param("loop", 2, 0, marks=pytest.mark.slow), pytest.param("fit", 2, 0, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_profile_for_other_replicas_is_refused(
    kind: str, devices: int, status: int, run_child: Run, write_script: Callable[..., Path]
) -> None:
    known = {"devices": devices, "framework": "keras", "backend": "tensorflow"}
    ran = run_child(write_script(SCRIPT), {"batch_size": 10}, argv=(kind,), mode="apply", knowledge=known)
    assert (ran.returncode, "trained on" in ran.output) == (status, status == 0), ran.output
    refusal = "autotune: error: the profile was proven on 3 devices, and the script computes on 2 devices"
    assert (refusal in ran.output) == (status == 2)
