"""Screens of Keras: the first update's gradient of a batch in parts, held to the whole batch's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from support.keras_trials import Trial, begin, keras

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
WHOLE: dict[str, Any] = {}
PARTS = {"batch_size": 8, "grad_accumulation": 4}


def data() -> tuple[Any, Any]:
    chance = numpy.random.default_rng(0)
    x = chance.random((128, 4), dtype="float32")
    return x, x.sum(1, keepdims=True)


def model(*layers: Any, **compiled: Any) -> Any:
    k = keras()
    made = k.Sequential([k.Input((4,)), k.layers.Dense(8, activation="tanh"), *layers, k.layers.Dense(1)])
    made.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return made


def first_gradient(begin: Begin, config: dict[str, Any], make: Callable[[], Any] = model, **fit: Any) -> Any:
    trial = begin(config, seed=1)
    keras().utils.set_random_seed(7)
    make().fit(*data(), epochs=1, verbose=0, **{"batch_size": 32, **fit})
    trial.end()
    found = trial.log.of("gradient")
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["graph", "xla"])
def test_a_batch_in_parts_has_the_gradient_of_the_whole(begin: Begin, jit: bool) -> None:
    whole = first_gradient(begin, WHOLE, lambda: model(jit_compile=jit))
    parts = first_gradient(begin, PARTS, lambda: model(jit_compile=jit))
    assert whole["samples"] == parts["samples"] == 32
    assert parts["norm"] == pytest.approx(whole["norm"], rel=1e-5)
    assert whole["norm"] > 0
    for one, other in zip(whole["inputs"], parts["inputs"], strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    assert len(whole["inputs"]) == 2
    assert not whole["random"]
    assert whole["exact"]


def test_the_norm_is_the_one_before_clipping(begin: Begin) -> None:
    def clipped() -> Any:
        return model(optimizer=keras().optimizers.SGD(0.01, global_clipnorm=1e-3))

    found, unclipped = first_gradient(begin, WHOLE, clipped), first_gradient(begin, WHOLE)
    assert found["norm"] == pytest.approx(unclipped["norm"], rel=1e-6)


def test_a_batch_norm_shows(begin: Begin) -> None:
    def normed() -> Any:
        return model(keras().layers.BatchNormalization())

    whole, parts = first_gradient(begin, WHOLE, normed), first_gradient(begin, PARTS, normed)
    assert abs(parts["norm"] / whole["norm"] - 1) > 5e-4


def test_a_layer_that_draws_numbers_is_told(begin: Begin) -> None:
    assert first_gradient(begin, WHOLE, lambda: model(keras().layers.Dropout(0.5)))["random"]


def unbuilt(*layers: Any) -> Any:
    """It learns its inputs' shape from the first batch: the first trace of a step draws its weights' first values."""
    k = keras()
    made = k.Sequential([k.layers.Dense(8, activation="tanh"), *layers, k.layers.Dense(1)])
    made.compile("sgd", lambda y, p: k.ops.square(y - p))
    return made


def test_first_values_of_weights_are_no_numbers_that_a_step_draws(begin: Begin) -> None:
    """Else no gradient of a model that is built by its first batch is compared."""
    whole, parts = first_gradient(begin, WHOLE, unbuilt), first_gradient(begin, PARTS, unbuilt)
    assert not whole["random"] and not parts["random"]
    assert parts["norm"] == pytest.approx(whole["norm"], rel=1e-5)


def test_what_a_step_draws_is_told_of_such_a_model_too(begin: Begin) -> None:
    tf = sys.modules["tensorflow"]

    class Noise(keras().layers.Layer):  # type: ignore[misc]  # Keras is imported late
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(shape[-1],), initializer="random_normal")

        def call(self, x: Any) -> Any:
            return x + self.scale * tf.random.stateless_normal(tf.shape(x), tf.random.uniform([2], 0, 9, tf.int32))

    assert first_gradient(begin, WHOLE, lambda: unbuilt(Noise()))["random"]


def test_an_eager_step_is_seen_as_well(begin: Begin) -> None:
    eager = first_gradient(begin, WHOLE, lambda: model(run_eagerly=True))
    assert eager["norm"] == pytest.approx(first_gradient(begin, WHOLE)["norm"], rel=1e-5)


def test_of_several_steps_in_one_call_the_first_is_not_told(begin: Begin) -> None:
    assert first_gradient(begin, {"steps_per_execution": 4}) is None


def test_a_trial_without_a_seed_is_left_alone(begin: Begin) -> None:
    trial = begin()
    model().fit(*data(), epochs=1, verbose=0)
    trial.end()
    assert not trial.log.of("gradient")


@pytest.mark.slow
def test_other_data_have_other_sums(begin: Begin) -> None:
    unshuffled = first_gradient(begin, WHOLE, shuffle=False)
    assert first_gradient(begin, WHOLE)["inputs"] != unshuffled["inputs"]


def test_half_precision_is_not_exact(begin: Begin) -> None:
    assert not first_gradient(begin, {"precision": "bf16"})["exact"]


def test_rows_of_an_embedding_that_come_twice_count_once(begin: Begin) -> None:
    def embedded() -> Any:
        k = keras()
        made = k.Sequential([k.Input((4,)), k.layers.Embedding(3, 8), k.layers.Flatten(), k.layers.Dense(1)])
        made.compile(optimizer="sgd", loss="mse")
        return made

    whole, parts = first_gradient(begin, WHOLE, embedded), first_gradient(begin, PARTS, embedded)
    assert parts["norm"] == pytest.approx(whole["norm"], rel=1e-5)
