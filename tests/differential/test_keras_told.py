"""A Keras script that knows its batch size keeps its course: rates and schedules that it derives from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.whole_runs import applied, plainly

pytestmark = pytest.mark.timeout(300)

TRAIN = """
    import argparse, json, os, sys
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras, numpy, tuner
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    BATCH = SIZE
    ROWS, EPOCHS = 100, 4
    schedules, SGD = keras.optimizers.schedules, keras.optimizers.SGD
    chance = numpy.random.default_rng(0)
    x = chance.random((ROWS, 6), dtype="float32")
    y = x.sum(1, keepdims=True)
    PER_EPOCH = -(-ROWS // BATCH)
    told = {}

    class Seen(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.rates = []
        def on_train_batch_end(self, batch, logs=None):
            self.rates.append(round(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)), 6))

    def train(name, rate, data=None, callbacks=(), **given):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        optimizer = SGD(rate)
        model.compile(optimizer, "mse")
        seen = Seen()
        if data is None:
            given["batch_size"] = BATCH
        model.fit(*((x, y) if data is None else (data,)), epochs=EPOCHS, verbose=0, shuffle=False,
                  callbacks=[*callbacks, seen], **given)
        told[name] = {
            "rates": seen.rates, "updates": int(keras.ops.convert_to_numpy(optimizer.iterations)),
            "weights": [round(float(w), 4) for w in model.get_weights()[0].ravel()],
        }

    train("cosine of a number", schedules.CosineDecay(0.05, 16))
    train("cosine of the samples", schedules.CosineDecay(0.05, EPOCHS * PER_EPOCH))
    train("by the batch", 0.05 * BATCH / 32)
    train("decay of each step", schedules.ExponentialDecay(0.05, 1, 0.9))
    train("plateau", 0.05, callbacks=[keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=0, min_delta=10.0)])
    train("by epochs", 0.05, callbacks=[keras.callbacks.LearningRateScheduler(lambda n, r: r * 0.5**n)])
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf
        batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH)
        train("endless", schedules.PolynomialDecay(0.05, 14), batches, steps_per_epoch=PER_EPOCH)
        train("counted", 0.05 * BATCH / 32, tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH))
    print("told", json.dumps(told))
"""
SIZES = {
    "option": "parser.parse_args().batch_size",
    "placeholder": "parser.parse_args().batch_size",
    "suggested": "tuner.suggested('batch_size', 32)",
}
SPLIT = {"batch_size": 8, "grad_accumulation": 4}
FREED = {"batch_size": 64, "lr_scale": 2.0}
WHOLE = {"min_s": 100, "max_s": 100, "warmup_s": 0.0, "warmup_steps": 1}
"""A window that lasts as long as the script."""
WRITTEN = {"batch_size": 32, "grad_accumulation": 1, "lr_scale": 1.0}
BOUND: dict[str, dict[str, Any]] = {
    "option": {"options": {"batch_size": "batch_size"}},
    "placeholder": {},
    "suggested": {"suggested": ["batch_size"]},
}


def told(output: str) -> dict[str, Any]:
    """What the script tells."""
    found = re.search("^told (.*)$", output, re.MULTILINE)
    assert found, output
    figures: dict[str, Any] = json.loads(found[1])
    return figures


def check(plain: dict[str, Any], split: dict[str, Any]) -> None:
    """The same rates, updates and weights."""
    assert plain.keys() == split.keys()
    for name, before in plain.items():
        assert split[name]["rates"] == before["rates"], name
        assert split[name]["updates"] == before["updates"], name
        assert split[name]["weights"] == pytest.approx(before["weights"], abs=2e-4), name


@pytest.mark.slow
@pytest.mark.parametrize("way", BOUND)
def test_a_profile_keeps_what_the_script_derives_from_its_batch(way: str, write_script: Callable[..., Path]) -> None:
    script = write_script(TRAIN.replace("SIZE", SIZES[way]))
    arguments = ("--batch-size={batch_size=32|16|8}",) if way == "placeholder" else ()
    done = applied(script, SPLIT, arguments, as_written=WRITTEN, framework="keras", **BOUND[way])
    check(told(plainly(script)), told(done.stdout))


@pytest.mark.slow
def test_a_trial_keeps_it_or_is_contradicted(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> None:
    script = write_script(TRAIN.replace("SIZE", SIZES["option"]))
    baseline = run_child(script, window=WHOLE)
    facts = {name: value for name, value in baseline.facts.items() if name not in ("kind", "t")}
    assert facts["options"] == {"batch_size": "batch_size"}
    split = run_child(script, SPLIT, knowledge=facts, window=WHOLE)
    check(told(baseline.output), told(split.output))
    assert (split.evidence("batch_size"), split.evidence("grad_accumulation")) == ("verified", "verified")
    freed = run_child(script, FREED, knowledge={**facts, "effective_batch": "free"}, window=WHOLE)
    report = next(r for r in reversed(freed.of("knob")) if r["knob"] == "batch_size")
    assert (report["evidence"], report["reason"].partition(" has ")[0]) == ("contradicted", "CosineDecay")
