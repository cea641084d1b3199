"""Loops that scripts write themselves, in a real child: the rate is the one that the script itself counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tuner.runner.created_files import move_created_files

TRAIN = """
    import sys, time
    import tensorflow as tf
    kind, replicas = sys.argv[1], int(sys.argv[2])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    import keras
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    x, y = tf.random.normal([1920, 64]), tf.random.uniform([1920], 0, 3, tf.int32)
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1920).batch(48)
    val = tf.data.Dataset.from_tensor_slices((x, y)).batch(640)
    with strategy.scope() if kind == "mirrored" else tf.name_scope("plain"):
        layers = keras.layers
        model = keras.Sequential([layers.Input([64]), layers.Dense(256, "relu"), layers.Dense(256), layers.Dense(3)])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(losses(y, model(x))) / 48
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss
    @tf.function
    def epoch(batches):
        seen = 0
        for x, y in batches:
            step(x, y)
            seen += tf.shape(x)[0]
        return seen
    @tf.function
    def on_replicas(batch):
        return strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)
    traced = tf.function(step)
    score = tf.function(lambda x, y: losses(y, model(x)))
    started, told = False, []
    distributed = strategy.experimental_distribute_dataset(train)
    for _ in range(int(sys.argv[3])):
        seen, entered = 0, time.perf_counter()
        if kind == "epoch":
            samples = int(epoch(train))
            if started:
                seen += samples
        else:
            for batch in distributed if kind == "mirrored" else train:
                on_replicas(batch) if kind == "mirrored" else (traced if kind == "function" else step)(*batch)
                if started:
                    seen += 48
                else:
                    started, entered = True, time.perf_counter()
        if seen:
            told.append(f"samples {seen} seconds {time.perf_counter() - entered}")
        started = True
        for batch in val:
            score(*batch)
    print(*told, sep="\\n")
"""
EPOCHS = 10
ALL = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1}


def epochs_in(blocks: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """The samples and seconds of training between what is set apart."""
    stretches = [[*of] for flagged, of in groupby(blocks, lambda block: block["flagged"]) if not flagged]
    told = [(sum(b["samples"] for b in of), sum(b["seconds"] for b in of)) for of in stretches]
    return [(samples, seconds) for samples, seconds in told if samples]


@pytest.mark.parametrize(
    ("kind", "replicas"),
    [
        ("function", 1),
        pytest.param("mirrored", 2, marks=pytest.mark.slow),
        *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in ("eager", "epoch", "mirrored")),
    ],
)
def test_the_rate_is_the_scripts_own(
    write_script: Callable[..., Path], run_child: Callable[..., Any], kind: str, replicas: int
) -> None:
    run = run_child(write_script(TRAIN), argv=(kind, str(replicas), str(EPOCHS)), window=ALL)
    assert run.returncode == 0, run.output
    told = [(int(n), float(s)) for n, s in re.findall(r"^samples (\d+) seconds (\S+)$", run.output, re.MULTILINE)]
    found = epochs_in(run.of("block"))
    assert len(found) == len(told) >= EPOCHS - 1, run.output
    assert sum(samples for samples, _ in found) == pytest.approx(sum(samples for samples, _ in told), rel=0.01)
    # What is set apart ends with the fetch of the next batch, and an epoch's beginning belongs to training. Where the
    # machine pauses at such a moment it counts on one side only: that decides for an epoch, and not for most of them.
    ratios = [(n / s) / (own / own_s) for (n, s), (own, own_s) in zip(found, told, strict=True)]
    assert median(ratios) == pytest.approx(1.0, rel=0.02), ratios
    assert any(block["flagged"] for block in run.of("block"))
    assert run.facts["unit"] == "samples"
    assert run.facts["steps"] == EPOCHS * 40
    assert len(run.facts["training_loaders"]) == 1
    assert [loss for loss in run.of("loss") if loss["value"] > 0] or replicas > 1
    assert run.facts["as_written"]["strategy"] == "mirrored"
    assert run.facts["left_out"].get("strategy") == ("the script trains on 2 replicas" if replicas > 1 else None)


@pytest.mark.slow
def test_a_loop_does_without_the_strategy_that_it_made(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    run = run_child(write_script(TRAIN), {"strategy": "default"}, argv=("mirrored", "1", "4"), window=ALL)
    assert run.returncode == 0, run.output
    assert run.facts["steps"] == 4 * 40
    assert run.evidence("strategy") == "verified"


@pytest.mark.slow  # 5 s beside three others
def test_a_window_ends_the_script_and_leaves_no_generated_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    run = run_child(write_script(TRAIN), argv=("epoch", "1", "100000"))
    assert list(temporary.glob("*.py")) == []
    assert run.of("window")[0]["complete"]
    assert run.returncode == 0
    assert "samples" not in run.output
    assert run.of("first_step")[0]["seconds"] > 0


@pytest.mark.slow
def test_xla_in_a_process_of_its_own(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> None:
    """Its threads show that compiled code ran; in the one where nothing was compiled there are none."""
    run = run_child(write_script(TRAIN), {"jit_compile": True}, argv=("function", "1", "100000"))
    assert run.evidence("jit_compile") == "verified", run.of("knob")
    run = run_child(write_script(TRAIN), {"jit_compile": True}, argv=("epoch", "1", "100000"))
    assert [failure["reason"] for failure in run.of("failure")] == ["compile-failure"]
    assert run.returncode == 0


def test_checkpoints_are_written_and_read_by_position_and_by_name(
    tmp_path: Path, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    script = write_script("""
        import tensorflow as tf
        value = tf.Variable(1.0)
        checkpoint = tf.train.Checkpoint(value=value)
        for write in (checkpoint.write, checkpoint.save):
            for path in (write("kept/one"), write(file_prefix="kept/two")):
                value.assign(2.0)
                checkpoint.read(save_path=path).assert_consumed()
                assert float(value) == 1.0
        print("fine")
    """)
    run = run_child(script, timeout=120)
    assert run.output.splitlines()[-1] == "fine", run.output
    move_created_files(run.folder)
    assert not (tmp_path / "kept").exists()


OTHER_BACKEND = """
    import os
    os.environ["KERAS_BACKEND"] = "jax"
    import tensorflow as tf
    weights = tf.Variable(tf.zeros([8, 1]))

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch @ weights - 1.0))
        weights.assign_sub(0.001 * tape.gradient(loss, weights))

    for batch in tf.data.Dataset.from_tensor_slices(tf.ones([80, 8])).batch(8):
        step(batch)
"""


@pytest.mark.slow  # another backend
def test_what_keras_would_compute_with_is_nothing_to_a_loop_of_tensorflow(
    run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    ran = run_child(write_script(OTHER_BACKEND), window={"min_s": 60, "max_s": 60})
    assert ran.returncode == 0, ran.output
    assert (ran.facts["steps"], ran.facts["samples"], ran.facts["backend"]) == (10, 80, "tensorflow")
    assert not [why for why in ran.facts["left_out"].values() if "jax" in why]
    assert ran.facts["as_written"]["strategy"] == "default"
