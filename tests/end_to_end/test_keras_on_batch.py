"""Scripts that train by ``train_on_batch``: they run, are counted, and are turned or left out with a reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from support.keras_trials import Trial, begin, model

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
BATCH = 16


def batches(count: int, kind: str = "numpy") -> Any:
    import tensorflow as tf

    chance = numpy.random.default_rng(0)
    for _ in range(count):
        x = chance.random((BATCH, 4), dtype="float32")
        yield (tf.constant(x), tf.constant(x.sum(1))) if kind == "tensors" else (x, x.sum(1))


WAYS = [*itertools.product((None, 1), (False, True), ("numpy", "tensors"))]
USUAL = {(None, False, "numpy"), (1, True, "tensors")}


@pytest.mark.parametrize(
    ("seed", "eager", "kind"), [pytest.param(*way, marks=() if way in USUAL else pytest.mark.slow) for way in WAYS]
)
def test_each_call_is_a_step_on_its_batch(begin: Begin, kind: str, eager: bool, seed: int | None) -> None:
    trial = begin(seed=seed)
    made = model(run_eagerly=eager)
    for x, y in batches(12, kind):
        made.train_on_batch(x, y)
    facts = trial.end()
    assert (facts["steps"], facts["samples"], facts["unit"]) == (12, 12 * BATCH, "samples")
    assert int(made.optimizer.iterations.numpy()) == 12
    assert "train_on_batch" in facts["left_out"]["grad_accumulation"]
    assert facts["left_out"]["batch_size"].endswith("bind it, as in -- --batch-size={batch_size}")
    assert facts["wait_is_unseen"]
    assert trial.log.of("loss")


def test_a_data_set_that_is_iterated_trains(begin: Begin) -> None:
    import tensorflow as tf

    trial = begin()
    made = model()
    rows = tf.data.Dataset.from_tensor_slices(next(batches(1))).repeat(12).batch(BATCH)
    for x, y in rows:
        made.train_on_batch(x, y)
    facts = trial.end()
    assert (facts["steps"], facts["samples"]) == (12, 12 * BATCH)
    assert facts["as_written"]["batch_size"] == BATCH
    assert not facts.get("wait_is_unseen")


def test_of_several_models_that_take_turns_the_first_is_counted(begin: Begin) -> None:
    trial = begin()
    first, second = model(), model()
    for x, y in batches(12):
        first.train_on_batch(x, y)
        second.train_on_batch(x, y)
        second.test_on_batch(x, y)
        second.predict_on_batch(x)
    facts = trial.end()
    assert (facts["steps"], facts["samples"]) == (12, 12 * BATCH)
    assert not facts["retraces"]


def test_batches_behind_a_fit_count_once(begin: Begin) -> None:
    trial = begin()
    made = model()
    x, y = next(batches(1))
    made.fit(x, y, batch_size=BATCH, epochs=3, verbose=0)
    for x, y in batches(9):
        made.train_on_batch(x, y)
    facts = trial.end()
    assert (facts["steps"], facts["samples"]) == (12, 12 * BATCH)


def test_a_fit_behind_batches_is_counted(begin: Begin) -> None:
    trial = begin()
    made = model()
    for x, y in batches(3):
        made.train_on_batch(x, y)
    x, y = next(batches(1))
    made.fit(x, y, batch_size=BATCH, epochs=9, verbose=0)
    facts = trial.end()
    assert (facts["steps"], facts["samples"]) == (12, 12 * BATCH)


def test_its_layers_compute_in_the_precision_that_is_asked_for(begin: Begin) -> None:
    trial = begin({"precision": "bf16"}, framework="keras")
    made = model()
    for x, y in batches(6):
        made.train_on_batch(x, y)
    trial.end()
    assert trial.evidence("precision") == ("verified", "")


def test_the_step_is_compiled_where_the_config_says_so(begin: Begin) -> None:
    trial = begin({"jit_compile": True}, framework="keras")
    made = model()
    for x, y in batches(8):
        made.train_on_batch(x, y)
    facts = trial.end()
    assert facts["as_written"]["jit_compile"] is False
    assert trial.evidence("jit_compile")[0] == "verified"
    assert int(made.optimizer.iterations.numpy()) == 8
