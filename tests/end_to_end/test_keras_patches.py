"""The patches of Keras and TensorFlow: put on in either order, once only, and taken off without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from support.in_process import InProcess
from support.keras_trials import Trial, begin, keras

from tuner.child import patches
from tuner.child.adapter import instrument
from tuner.child.keras.adapter import KerasAdapter

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
TURNED = {
    "batch_size": 10, "parallel_calls": 2, "prefetch": 1, "cache": True, "precision": "bf16", "jit_compile": False,
    "grad_accumulation": 2, "lr_scale": 2.0, "steps_per_execution": 1, "strategy": "default", "run_eagerly": False,
}  # fmt: skip


def train() -> list[Any]:
    """A small training's weights."""
    import tensorflow as tf

    k = keras()
    k.utils.set_random_seed(2)
    x = numpy.random.default_rng(0).random((60, 4), dtype="float32")
    model = k.Sequential([k.Input((4,)), k.layers.Dense(8), k.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(tf.data.Dataset.from_tensor_slices((x, x.sum(1))).batch(20), epochs=2, verbose=0)
    return list(model.get_weights())


def same(one: list[Any], other: list[Any]) -> bool:
    return all(numpy.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_everything_is_put_back(begin: Begin) -> None:
    untouched = train()
    trial = begin(TURNED, seed=3)
    placed = list(patches._ledger)
    assert {name for _, name, _ in placed} >= {"fit", "evaluate", "map", "batch", "gradient", "__iter__", "set_seed"}
    train()
    patches.unpatch_all()
    for owner, name, original in placed:
        assert vars(owner).get(name, getattr(owner, name)) is original, (owner, name)
    seen = trial.samples
    assert same(train(), untouched)
    assert trial.samples == seen


@pytest.mark.parametrize("order", ["tensorflow first", "keras first"])
def test_either_library_may_be_met_first(begin: Begin, order: str) -> None:
    import tensorflow as tf

    begin()
    patches.unpatch_all()
    trial = InProcess({}, {})
    adapter = KerasAdapter(trial.session)
    if order == "keras first":
        instrument(trial.session, adapter, keras())
    instrument(trial.session, adapter, tf)
    if order == "tensorflow first":
        instrument(trial.session, adapter, keras())
    train()
    facts = trial.end()
    assert (facts["samples"], facts["steps"], facts["fed_by"]) == (120, 6, "dataset")
    assert facts["as_written"]["batch_size"] == 20


def test_a_library_that_is_met_twice_is_counted_once(begin: Begin) -> None:
    import tensorflow as tf

    trial = begin()
    placed = len(patches._ledger)
    instrument(trial.session, trial.adapter, tf)
    assert len(patches._ledger) == placed
    instrument(trial.session, trial.adapter, keras())
    assert len(patches._ledger) == placed
    patches.unpatch_all()
    assert not patches._ledger
