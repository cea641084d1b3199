"""A batch isn't split where its parts would train otherwise than the whole, and nothing of a screen could tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, keras

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
WRITTEN = {"batch_size": 8, "grad_accumulation": 1}
SPLIT = {"batch_size": 4, "grad_accumulation": 2}


def train(kind: str, *, random: bool = False) -> Any:
    """Three steps of a model of that kind."""
    k = keras()
    ops, layers = k.ops, k.layers

    class Added(layers.Layer):  # type: ignore[misc, name-defined]  # Keras is imported late
        def call(self, x: Any) -> Any:
            self.add_loss(0.01 * ops.sum(x * x))
            return x

    class Average(layers.Layer):  # type: ignore[misc, name-defined]  # likewise
        def build(self, shape: Any) -> None:
            self.average = self.add_weight(shape=(shape[-1],), trainable=False, initializer="zeros")

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.average.assign(0.9 * self.average + 0.1 * ops.mean(x, axis=0))
            return x - self.average

    def summed(y: Any, p: Any) -> Any:
        return ops.sum(ops.square(y - p))

    steady = layers.Normalization()
    steady.adapt(arrays()[0])
    first = {"added": Added(), "average": Average(), "normalization": steady}.get(kind, layers.Dense(4))
    if kind == "spectral":
        first = layers.SpectralNormalization(layers.Dense(4))
    if kind == "activity":
        first = layers.Dense(4, activity_regularizer="l2")
    if kind == "regularizer":
        first = layers.Dense(4, kernel_regularizer="l2")
    frozen = layers.Dense(4)
    frozen.trainable = kind != "frozen"
    drawing = [layers.Dropout(0.1)] if random else []
    model = k.Sequential([k.Input((4,)), first, frozen, *drawing, layers.Dense(1)])
    model.compile("sgd", summed if kind == "own" else "mse")
    model.fit(*arrays(24), batch_size=8, verbose=0)
    return model


@pytest.mark.parametrize(
    ("kind", "random", "reason"),
    [
        ("plain", True, ""),
        *(pytest.param(kind, True, "", marks=pytest.mark.slow) for kind in ("regularizer", "normalization", "frozen")),
        # The gradient of the parts is held to that of the whole in a screen.
        pytest.param("own", False, "", marks=pytest.mark.slow),
        ("own", True, "its loss is a function of the script's own"),
        ("activity", False, "Dense adds a loss of its own"),
        pytest.param("average", False, "Average keeps a state", marks=pytest.mark.slow),  # test_keras_gradients.py
        pytest.param("added", False, "Added adds a loss of its own", marks=pytest.mark.slow),
        pytest.param("spectral", False, "SpectralNormalization keeps a state", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_batch_is_split_only_where_its_parts_train_alike(begin: Begin, kind: str, random: bool, reason: str) -> None:
    baseline = begin()
    train(kind, random=random)
    left_out = baseline.end()["left_out"].get("grad_accumulation", "")
    assert left_out.startswith(reason) and bool(left_out) is bool(reason)

    trial = begin(SPLIT, framework="keras", as_written=WRITTEN)
    train(kind, random=random)
    trial.end()
    evidence, why = trial.evidence("grad_accumulation")
    assert evidence == ("contradicted" if reason else "verified") and why.startswith(reason), why


ON_A_BACKEND = """
    import os, sys
    os.environ["KERAS_BACKEND"] = sys.argv[1]
    import keras, numpy
    layers = keras.layers
    first = layers.SpectralNormalization(layers.Dense(4)) if sys.argv[2] == "state" else layers.Dense(4)
    model = keras.Sequential([keras.Input((4,)), first, layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(numpy.ones((80, 4)), numpy.ones((80, 1)), batch_size=8, epochs=2, verbose=0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize("kind", ["state", "plain"])
def test_states_are_seen_on_other_backends(
    write_script: Callable[..., Path], run_child: Callable[..., Any], backend: str, kind: str
) -> None:
    window = {"min_s": 60, "max_s": 60}
    ran = run_child(write_script(ON_A_BACKEND), argv=(backend, kind), window=window)
    left_out = ran.facts["left_out"].get("grad_accumulation", "")
    assert left_out == ("SpectralNormalization keeps a state that each forward pass changes" * (kind == "state"))
