"""A batch isn't split where a mask cuts its loss: Keras divides by what the mask leaves, of each part anew."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.keras_trials import Trial, begin, keras

from tuner.child.patches import unpatch_all

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
WRITTEN = {"batch_size": 8, "grad_accumulation": 1}
SPLIT = {"batch_size": 4, "grad_accumulation": 2}
MASKED = "its loss is a mean over what a mask leaves"


def trained(kind: str, **fit: Any) -> list[Any]:
    """The weights after three steps: a sequence's answers, one answer a sequence, or a class that doesn't count."""
    k = keras()
    k.utils.set_random_seed(0)
    chance = numpy.random.default_rng(0)
    x = chance.integers(1, 20, (8, 10))
    x[4:, 1:] = 0  # short sentences in the second half
    embedding = k.layers.Embedding(20, 4, mask_zero=kind != "ignored")
    layers = [embedding, k.layers.Dropout(0.5), k.layers.BatchNormalization()]
    if kind == "pooled":
        layers = [embedding, k.layers.GlobalAveragePooling1D()]
    y: Any = chance.random((8, 1) if kind == "pooled" else (8, 10, 1))
    loss: Any = "mse"
    if kind == "ignored":
        loss, y = k.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0), x % 3
    made = k.Sequential([*layers, k.layers.Dense(3 if kind == "ignored" else 1)])
    made.compile(k.optimizers.SGD(0.5), loss)
    made.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, **fit)
    weights: list[Any] = made.get_weights()
    return weights


@pytest.mark.parametrize(
    "kind", ["sequence", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("pooled", "ignored"))]
)
def test_a_batch_is_split_only_where_no_mask_reaches_the_loss(begin: Begin, kind: str) -> None:
    baseline = begin()
    trained(kind)
    left_out = baseline.end()["left_out"].get("grad_accumulation", "")
    assert (MASKED in left_out) is (kind != "pooled")

    trial = begin(SPLIT, framework="keras", as_written=WRITTEN)
    seen = trained(kind)
    trial.end()
    unpatch_all()
    for one, other in zip(trained(kind), seen, strict=True):
        numpy.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    evidence, reason = trial.evidence("grad_accumulation")
    assert evidence == ("verified" if kind == "pooled" else "contradicted"), reason
    assert (MASKED in reason) is (kind != "pooled")
    assert trial.evidence("batch_size")[0] == evidence


def test_a_later_fit_of_a_masked_model_is_not_split_either(begin: Begin) -> None:
    trial = begin(SPLIT, framework="keras", as_written=WRITTEN)
    k = keras()
    x = numpy.tile([[3, 1, 0]], (8, 1))
    made = k.Sequential([k.layers.Embedding(5, 2, mask_zero=True), k.layers.Dense(1)])
    made.compile("sgd", "mse")
    for _ in range(2):
        made.fit(x, numpy.ones((8, 3, 1)), batch_size=8, verbose=0)
    trial.end()
    assert trial.evidence("grad_accumulation")[0] == "contradicted"
    assert trial.samples == 16


def test_what_can_not_be_told_is_said_as_that(begin: Begin) -> None:
    """A call before the first step may fail for a reason that has nothing to do with masks."""
    trial = begin(SPLIT, framework="keras", as_written=WRITTEN)
    k = keras()

    class Once(k.layers.Layer):  # type: ignore[misc, name-defined]  # Keras is imported late
        asked = 0

        def call(self, x: Any, training: bool = False) -> Any:
            Once.asked += bool(training)
            if Once.asked == 1:
                raise RuntimeError("not yet")
            return x

    made = k.Sequential([k.layers.Embedding(5, 2, mask_zero=True), Once(), k.layers.Flatten(), k.layers.Dense(1)])
    made.build((None, 3))
    made.compile("sgd", "mse")
    made.fit(numpy.tile([[3, 1, 0]], (8, 1)), numpy.ones((8, 1)), batch_size=8, verbose=0)
    trial.end()
    told = "whether a mask reaches its loss can't be told before a step is taken: RuntimeError"
    assert trial.evidence("grad_accumulation") == ("contradicted", told)


@pytest.mark.parametrize("weighted", ["sample_weight", pytest.param("class_weight", marks=pytest.mark.slow)])
def test_weights_of_samples_are_no_obstacle(begin: Begin, weighted: str) -> None:
    """Keras divides by the rows and not by the weights."""
    weights = {weighted: numpy.arange(8.0) if weighted == "sample_weight" else {0: 1.0, 1: 9.0}}

    def train() -> list[Any]:
        k = keras()
        k.utils.set_random_seed(0)
        made = k.Sequential([k.Input((2,)), k.layers.Dense(1, activation="sigmoid")])
        made.compile(k.optimizers.SGD(0.5), "binary_crossentropy")
        x = numpy.random.default_rng(0).random((8, 2))
        made.fit(x, numpy.arange(8) // 6, batch_size=8, epochs=2, shuffle=False, verbose=0, **weights)
        kept: list[Any] = made.get_weights()
        return kept

    trial = begin(SPLIT, framework="keras", as_written=WRITTEN)
    seen = train()
    trial.end()
    assert trial.evidence("grad_accumulation") == ("verified", "")
    unpatch_all()
    for one, other in zip(train(), seen, strict=True):
        numpy.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


ON_A_BACKEND = """
    import os, sys
    os.environ["KERAS_BACKEND"] = sys.argv[1]
    import json, keras, numpy
    keras.utils.set_random_seed(0)
    x = numpy.random.randint(1, 20, (8, 10))
    x[4:, 1:] = 0
    layers = keras.layers
    model = keras.Sequential([layers.Embedding(20, 4, mask_zero=True), layers.Dropout(0.5), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.fit(x, numpy.random.rand(8, 10, 1), batch_size=8, epochs=2, shuffle=False, verbose=0)
    print("told", json.dumps([w.ravel().tolist() for w in model.get_weights()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_masked_loss_is_not_split_on_other_backends(
    write_script: Callable[..., Path], run_child: Callable[..., Any], backend: str
) -> None:
    script = write_script(ON_A_BACKEND)
    knowledge = {"framework": "keras", "as_written": WRITTEN}

    def told(config: dict[str, Any]) -> Any:
        ran = run_child(script, config, argv=(backend,), mode="apply", knowledge=knowledge)
        found = re.search(r"told (.*)", ran.output)
        assert found, ran.output
        return ran, [numpy.array(weights) for weights in json.loads(found[1])]

    _, plain = told({})
    ran, split = told(SPLIT)
    for one, other in zip(plain, split, strict=True):
        numpy.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert "NOT in effect: batch_size" in ran.output
    assert MASKED in ran.output
    assert "in effect: batch_size;" not in ran.output
