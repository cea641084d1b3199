"""TensorFlow's MirroredStrategy over two logical processors: samples, losses and knobs of all replicas together."""

from __future__ import annotations

import re
import subprocess
import sys
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
keras.utils.set_random_seed(0)
x, y = tf.random.uniform([rows, 8]), tf.random.uniform([rows, 1])
data = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x * 2, y)).batch(size)
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

if kind in ("loop", "mean", "function"):
    by_function = strategy.distribute_datasets_from_function(lambda context: data.unbatch().batch(size // 2))
    for _ in range(epochs):
        for batch in by_function if kind == "function" else strategy.experimental_distribute_dataset(data):
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
@pytest.mark.slow  # 7 s beside three others
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


@pytest.mark.slow  # those of a loop that sums them: with knobs of its data, below
@pytest.mark.parametrize("kind", ["loop", "mean", "batches"])
def test_losses_are_those_of_all_replicas(kind: str, run_child: Run, write_script: Callable[..., Path]) -> None:
    """The sum of what each has, by which a strategy's gradients go, or their mean where the script takes that."""
    ran = run_child(write_script(SCRIPT), argv=(kind,), window=WHOLE, seed=1)
    assert ran.returncode == 0, ran.output
    its_losses_are_told(ran)


def its_losses_are_told(ran: Any) -> None:
    """Each one that the script prints, but for the first."""
    losses = [float.fromhex(loss) for loss in losses_of(ran.output)]
    told = [record["value"] for record in ran.of("loss")]
    assert len(losses) == EPOCHS * -(-ROWS // SIZE)
    assert told == pytest.approx(losses[-len(told) :], rel=1e-6) and len(told) >= len(losses) - 1


def losses_of(output: str) -> list[str]:
    """As the script printed them, to the last bit."""
    return re.findall(r"^loss (\S+)$", output, re.MULTILINE)


@pytest.mark.slow  # of one device: test_tf_data.py
@pytest.mark.parametrize("kind", ["loop", pytest.param("fit", marks=pytest.mark.slow)])
def test_knobs_of_the_data_are_seen_at_work_for_all_replicas(
    kind: str, run_child: Run, write_script: Callable[..., Path]
) -> None:
    """In the plan that TensorFlow makes of what it shares out; and the training is the same to the last bit."""
    script, config = write_script(SCRIPT), {"parallel_calls": 2, "prefetch": 4, "private_threads": 3}
    as_written = run_child(script, argv=(kind,), window=WHOLE)
    left_out = as_written.facts["left_out"]
    assert left_out["jit_compile"] == "XLA compiles for one device, and the script trains on 2 replicas"
    assert left_out["steps_per_execution"] == "TensorFlow fails at several steps in one call on 2 replicas"
    known = {name: value for name, value in as_written.facts.items() if name not in ("kind", "t")}
    turned = run_child(script, config, argv=(kind,), window=WHOLE, knowledge=known)
    assert {knob: turned.evidence(knob) for knob in config} == dict.fromkeys(config, "verified"), turned.of("knob")
    told = [[record["value"] for record in ran.of("loss")] for ran in (as_written, turned)]
    assert told[0] == told[1] and len(told[0]) > 30
    if kind == "loop":
        its_losses_are_told(as_written)
    assert losses_of(turned.output) == losses_of(as_written.output)


@pytest.mark.slow
def test_data_that_a_function_makes_for_each_replica_stay_as_they_are(
    run_child: Run, write_script: Callable[..., Path]
) -> None:
    ran = run_child(write_script(SCRIPT), argv=("function",), window=WHOLE)
    why = "a function of the script's makes the data of each replica"
    assert {ran.facts["left_out"].get(knob) for knob in ("prefetch", "parallel_calls", "batch_size")} == {why}
    assert f"trained on {int(ran.facts['samples'])}\n" in ran.output


@pytest.mark.slow
def test_losses_on_several_replicas_are_those_of_plain_python(
    run_child: Run, write_script: Callable[..., Path]
) -> None:
    script = write_script(SCRIPT)
    command = [sys.executable, str(script), "loop"]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert losses_of(run_child(script, argv=("loop",), window=WHOLE).output) == losses_of(plain.stdout) != []


@pytest.mark.slow
@pytest.mark.parametrize("given", ["jit_compile=True", "steps_per_execution=3"])
def test_what_is_left_out_on_several_replicas_ends_plain_keras(given: str, write_script: Callable[..., Path]) -> None:
    """Should this pass one day, the knob can be turned there."""
    script = write_script(SCRIPT.replace('"mse")', f'"mse", {given})'))
    command = [sys.executable, str(script), "fit"]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert plain.returncode and "InvalidArgumentError" in plain.stderr


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
