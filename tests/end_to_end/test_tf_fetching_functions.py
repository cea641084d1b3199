"""A training function of a library's that fetches its batches itself, as that of legacy Keras' fit does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.tf_here import tf
from support.tf_networks import Net, batches
from support.tf_trials import begin

__all__ = ["begin"]

pytestmark = pytest.mark.filterwarnings("ignore")
FIT = """
def fit(train_function, dataset, epochs):
    for _ in range(epochs):
        iterator = iter(dataset)
        for _ in range(len(dataset)):
            train_function(iterator)
"""
LIBRARY = "/somewhere/site-packages/tf_keras/"


def test_it_is_not_told_that_no_dataset_feeds_it(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset is there, and the library's: only what the script iterates itself is turned."""
    legacy = ModuleType("tf_keras")
    legacy.__file__ = f"{LIBRARY}__init__.py"
    monkeypatch.setitem(sys.modules, "tf_keras", legacy)
    exec(compile(FIT, f"{LIBRARY}src/engine/training.py", "exec"), vars(legacy))
    trial, net = begin(), Net()

    def train_function(iterator: Any) -> None:
        net.step(*next(iterator))

    legacy.fit(tf.function(train_function), batches(), 4)
    facts = trial.end()
    assert (facts["steps"], facts["training_loaders"]) == (28, [])
    fetches = "the training function fetches its batches itself"
    assert {facts["left_out"][knob] for knob in ("prefetch", "parallel_calls", "batch_size")} == {fetches}


LOOP = """
    import tensorflow as tf
    import tf_keras
    weight = tf.Variable(tf.ones([4, 1]))
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weight))
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
    for x in tf.data.Dataset.from_tensor_slices(tf.ones([640, 4])).batch(8):
        step(x)
"""


def test_layers_of_legacy_keras_are_told_to_be_left_alone(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """It read as if no layer of any Keras computed, while the model was made of such."""
    script = write_script(LOOP)
    (script.parent / "tf_keras").mkdir()
    (script.parent / "tf_keras" / "__init__.py").touch()
    left_out = run_child(script, window={"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1}).facts["left_out"]
    assert left_out["precision"] == (
        "no layer of Keras 3 computes in the training step, and those of legacy Keras (tf_keras) are left alone"
    )
