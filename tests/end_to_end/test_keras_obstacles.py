"""A batch isn't split where its parts would train otherwise than the whole, and nothing of a screen could tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.keras_trials import Trial, arrays, begin, keras

from tuner.child.patches import unpatch_all

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

    class OfRows(layers.Layer):  # type: ignore[misc, name-defined]  # likewise
        def call(self, x: Any) -> Any:
            return x - ops.mean(x, axis=0)

    def summed(y: Any, p: Any) -> Any:
        return ops.sum(ops.square(y - p))

    class Centred(k.losses.Loss):  # type: ignore[misc, name-defined]  # likewise
        def call(self, y: Any, p: Any) -> Any:
            return ops.square(y - p) + ops.square(p - ops.mean(p, axis=0))

    class Computing(k.Sequential):  # type: ignore[misc, name-defined]  # likewise
        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
            return super().compute_loss(x, y, y_pred, sample_weight) + ops.sum(ops.square(y_pred))

    steady = layers.Normalization()
    steady.adapt(arrays()[0])
    first = {"added": Added(), "average": Average(), "normalization": steady, "rows": OfRows()}.get(
        kind, layers.Dense(4)
    )
    if kind == "spectral":
        first = layers.SpectralNormalization(layers.Dense(4))
    if kind == "activity":
        first = layers.Dense(4, activity_regularizer="l2")
    if kind == "regularizer":
        first = layers.Dense(4, kernel_regularizer="l2")
    frozen = layers.Dense(4)
    frozen.trainable = kind != "frozen"
    drawing = [layers.Dropout(0.1)] if random else []
    # Without an input's shape the weights are drawn where the first step is traced: no step draws them.
    inputs = [] if kind == "own, unbuilt" else [k.Input((4,))]
    model = (Computing if kind == "computing" else k.Sequential)(
        [*inputs, first, frozen, *drawing, layers.Dense(1, activation="sigmoid" if kind == "dice" else None)]
    )
    losses = {"own": summed, "class": Centred(), "dice": k.losses.Dice(), "dice of rows": k.losses.Dice(axis=1)}
    model.compile("sgd", losses.get(kind.removesuffix(", unbuilt"), "mse"))
    model.fit(*arrays(24), batch_size=8, verbose=0)
    return model


@pytest.mark.parametrize(
    ("kind", "random", "reason"),
    [
        ("plain", True, ""),
        *(pytest.param(kind, True, "", marks=pytest.mark.slow) for kind in ("regularizer", "normalization", "frozen")),
        # The gradient of the parts is held to that of the whole in a screen.
        pytest.param("own", False, "", marks=pytest.mark.slow),
        ("own, unbuilt", False, ""),
        ("own, unbuilt", True, "its loss is the script's own"),
        ("own", True, "its loss is the script's own"),
        pytest.param("class", True, "its loss is the script's own", marks=pytest.mark.slow),
        ("computing", True, "its loss is the script's own"),
        pytest.param("computing", False, "", marks=pytest.mark.slow),
        ("rows", True, "what its model gives for a sample goes by the others of the batch"),
        pytest.param("rows", False, "", marks=pytest.mark.slow),
        ("dice", False, "the loss is no mean over the batch (ratio)"),
        pytest.param("dice of rows", False, "", marks=pytest.mark.slow),
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


def test_a_later_model_is_not_split_by_what_the_first_one_told(begin: Begin) -> None:
    """Half of a sum is another gradient: a pretraining by a mean said that batches may be split."""
    k = keras()

    def stages() -> list[Any]:
        k.utils.set_random_seed(0)
        weights: list[Any] = []
        for loss in ("mse", k.losses.MeanSquaredError(reduction="sum")):
            model = k.Sequential([k.Input((4,)), k.layers.Dense(1)])
            model.compile(k.optimizers.SGD(0.01), loss)
            model.fit(*arrays(24), batch_size=8, shuffle=False, verbose=0)
            weights += model.get_weights()
        return weights

    trial = begin(SPLIT, framework="keras", as_written=WRITTEN)
    split = stages()
    trial.end()
    unpatch_all()
    for one, other in zip(stages(), split, strict=True):
        numpy.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert trial.evidence("grad_accumulation") == ("contradicted", "the loss is no mean over the batch (sum)")


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


@pytest.mark.parametrize("kind", ["logarithm", "masked mean"])
def test_made_up_rows_without_an_answer_refuse_nothing(begin: Begin, kind: str) -> None:
    """Of negative numbers there is no logarithm, and of nothing but padding no mean: asked twice, "no number" isn't
    itself.
    """
    k = keras()
    baseline = begin()
    given = k.Input((1,))
    if kind == "logarithm":
        hidden = k.ops.log(given)
    else:
        hidden = k.layers.GlobalAveragePooling1D()(k.layers.Embedding(9, 4, mask_zero=True)(given))
    model = k.Model(given, k.layers.Dense(1)(k.layers.Dropout(0.1)(hidden)))
    model.compile("sgd", "mse")
    places = numpy.arange(24)[:, None] % 8 + 1
    x = places.astype("float32") if kind == "logarithm" else places
    model.fit(x, numpy.ones((24, 1)), batch_size=8, verbose=0)
    assert "grad_accumulation" not in baseline.end()["left_out"]


def test_no_more_rows_are_made_up_than_a_batch_has(begin: Begin) -> None:
    """Of large volumes more than that may not go into the memory."""
    k = keras()
    seen: list[int] = []

    class Counting(k.layers.Layer):  # type: ignore[misc, name-defined]  # Keras is imported late
        def call(self, x: Any, training: bool = False) -> Any:
            if not training:
                seen.append(x.shape[0] or 0)
            return x

    baseline = begin()
    model = k.Sequential([k.Input((4,)), Counting(), k.layers.Dropout(0.1), k.layers.Dense(1)])
    model.compile("sgd", "mse")
    seen.clear()
    model.fit(*arrays(24), batch_size=2, verbose=0)
    assert "grad_accumulation" not in baseline.end()["left_out"]
    assert max(seen) == 2 and 1 in seen
