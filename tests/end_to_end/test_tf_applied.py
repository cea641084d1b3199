"""Scripts on TensorFlow and Keras as ``autotune run`` runs them, to their end, in a real child."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.campaign import PAIRS

Write = Callable[..., Path]
Run = Callable[..., Any]



@pytest.mark.slow  # 20 s beside three others
def test_every_sample_trains_with_its_own_label(write_script: Write, run_child: Run, tmp_path: Path) -> None:
    """Tried before: of a zip of two mapped datasets three samples of four were trained with another's label."""
    told = tmp_path / "told.json"
    config = {"deterministic": False, "parallel_calls": "auto", "prefetch": 4}
    run = run_child(write_script(PAIRS), config, mode="apply", argv=(str(tmp_path / "pictures"), str(told)))
    assert run.returncode == 0, run.output
    seen = json.loads(told.read_text())
    for name in ("zip", "windows", "pictures", "split", "freed"):
        assert [pair for pair in seen[name] if pair[0] != pair[1]] == [], name
    assert sorted(x for x, _ in seen["zip"]) == list(range(900))
    assert sorted(x for x, _ in seen["windows"]) == list(range(5, 900))[: len(seen["windows"])]
    assert len(seen["pictures"]) == 60
    assert sorted(x for x, _ in seen["freed"]) == list(range(900))
    validates = set(seen["validates"])
    assert validates.isdisjoint(x for x, _ in seen["split"]) and len(seen["split"]) == 800


EPOCHS = """
    import sys, time
    import keras, tensorflow as tf
    kind, kept = sys.argv[1], []
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    def train_data():
        made = tf.data.Dataset.from_tensor_slices(tf.random.normal([96, 4])).shuffle(96).batch(8)
        if kind == "cycle":
            made.itself = made  # only the garbage collector finds it
        if kind == "kept":
            kept.append(made)
        return made

    def sizes(dataset, train):
        seen = []
        for x in dataset:
            seen.append(int(x.shape[0]))
            if train:
                step(x)
        return max(seen)

    for epoch in range(int(sys.argv[2])):
        data = train_data()
        trained = sizes(data, True)
        validated = sizes(tf.data.Dataset.from_tensor_slices(tf.random.normal([24, 4])).batch(6), False)
        print("sizes", trained, validated)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "cycle", "kept"])
def test_datasets_made_anew_each_epoch_keep_their_knobs(write_script: Write, run_child: Run, kind: str) -> None:
    script = write_script(EPOCHS)
    # A window that ends with the script: what trains is known of three epochs.
    baseline = run_child(script, argv=(kind, "3"), window={"min_s": 60, "max_s": 60, "warmup_steps": 1})
    assert baseline.returncode == 0, baseline.output
    known = {name: baseline.facts[name] for name in ("framework", "as_written", "training_loaders", "loaders")}
    assert known["as_written"]["batch_size"] == 8
    run = run_child(script, {"batch_size": 32}, argv=(kind, "6"), mode="apply", knowledge=known)
    assert run.returncode == 0, run.output
    assert re.findall(r"sizes (\d+) (\d+)", run.output) == [("32", "6")] * 6


# A loop whose lines move, whose numbers and layout are edited, and which makes another dataset first.
MOVED = (
    ("    kind, kept", "    # one more line\n\n    kind, kept"),
    (".shuffle(96).batch(8)", ".shuffle(\n            64\n        ).batch(8)"),
    ("        data = ", "        first = sizes(tf.data.Dataset.range(4).batch(2), False)\n        data = "),
)


@pytest.mark.slow  # how places are found again: unit/child/test_call_sites.py
@pytest.mark.parametrize("says_the_same", [True, False])
def test_knobs_find_their_dataset_again_where_lines_have_moved(
    write_script: Write, run_child: Run, says_the_same: bool
) -> None:
    """And where what is said has changed too, it may be another dataset: that is told."""
    baseline = run_child(
        write_script(EPOCHS), argv=("plain", "2"), window={"min_s": 60, "max_s": 60, "warmup_steps": 1}
    )
    assert baseline.returncode == 0, baseline.output
    known = {name: baseline.facts[name] for name in ("framework", "as_written", "training_loaders", "loaders")}
    edited = EPOCHS
    for before, after in MOVED if says_the_same else (*MOVED, ("sizes(data, True)", "sizes(data.prefetch(1), True)")):
        assert before in edited
        edited = edited.replace(before, after, 1)
    run = run_child(write_script(edited), {"batch_size": 32}, argv=("plain", "2"), mode="apply", knowledge=known)
    trained = "32" if says_the_same else "8"
    assert re.findall(r"sizes (\d+) (\d+)", run.output) == [(trained, "6")] * 2, "the one that trains, and no other"
    assert ("NOT in effect: batch_size" in run.output) is not says_the_same


STRATEGY = """
    import sys
    import keras, numpy as np, tensorflow as tf
    if sys.argv[1] == "mirrored":
        tf.distribute.experimental_set_strategy(tf.distribute.MirroredStrategy(["CPU:0"]))
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.zeros((64, 4)), np.zeros((64, 1)), verbose=0)
    print("trained on", type(model.distribute_strategy).__name__)
"""


@pytest.mark.parametrize(
    ("kind", "trains_on"),
    [
        ("plain", "_DefaultDistributionStrategy"), ("mirrored", "MirroredStrategy"),
    ],
)
@pytest.mark.slow  # test_run_watched.py, test_tf_devices.py
def test_what_a_profile_cannot_have_here_does_not_end_the_training(
    write_script: Write, run_child: Run, kind: str, trains_on: str
) -> None:
    """There is no TPU: as a trial that is infeasible, and a run trains as the script is written."""
    script = write_script(STRATEGY)
    run = run_child(script, {"strategy": "tpu"}, argv=(kind,), mode="apply")
    assert run.returncode == 0, run.output
    assert f"trained on {trains_on}" in run.output


@pytest.mark.slow
def test_a_strategy_that_cannot_be_had_makes_a_trial_infeasible(write_script: Write, run_child: Run) -> None:
    run = run_child(write_script(STRATEGY), {"strategy": "tpu"}, argv=("plain",))
    assert "trained on" not in run.output
    (failure,) = run.of("failure")
    assert failure["reason"] == "unsupported" and failure["detail"].startswith("strategy tpu can't be had: ")


FOLDS = """
    import gc, sys, weakref
    import tensorflow as tf
    weights = []

    def fold():
        weight = tf.Variable(tf.zeros((4, 1)))
        weights.append(weakref.ref(weight))

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weight - 1.0) ** 2)
            weight.assign_sub(0.1 * tape.gradient(loss, weight))

        for number in range(3):
            step(tf.ones((8, 4)))

    for number in range(int(sys.argv[1])):
        fold()
        gc.collect()
    print("alive", sum(weight() is not None for weight in weights))
"""


@pytest.mark.slow
def test_what_a_script_lets_go_is_let_go(write_script: Write, run_child: Run) -> None:
    """A training in folds: each has a model and a function of its own, and all of them stayed in memory."""
    run = run_child(write_script(FOLDS), {"jit_compile": True}, mode="apply", argv=("4",))
    assert run.returncode == 0 and "in effect: jit_compile" in run.output, run.output
    (alive,) = re.findall(r"^alive (\d+)$", run.output, re.MULTILINE)
    assert int(alive) <= 2, "the newest one, and the one before it"


@pytest.mark.slow
@pytest.mark.parametrize("folds", ["1", "7"])
def test_what_was_compiled_is_in_effect_when_it_is_gone(write_script: Write, run_child: Run, folds: str) -> None:
    """A script that ends in its first steps, or tells of itself in the first one of another function."""
    script = write_script(FOLDS.replace("range(3)", "range(1 if len(weights) > 6 else 3)"))
    run = run_child(script, {"jit_compile": True}, mode="apply", strict=True, argv=(folds,))
    assert run.returncode == 0 and "after" in run.output and "steps in effect: jit_compile" in run.output, run.output
