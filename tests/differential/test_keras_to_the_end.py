"""A Keras script that splits its batches trains to the same end as in plain Python: rate, updates, samples, weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.whole_runs import applied

pytestmark = pytest.mark.timeout(300)

TRAIN = """
    import json, os, sys
    os.environ.setdefault("KERAS_BACKEND", sys.argv[1])
    import keras, numpy
    ops, layers, schedules = keras.ops, keras.layers, keras.optimizers.schedules
    chance = numpy.random.default_rng(0)
    rows = 100  # no multiple of the batch: each epoch ends with a part of one
    x = chance.random((rows, 6), dtype="float32")
    y = x.sum(1, keepdims=True) ** 2
    told = {}

    class Seen(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.batches = self.epochs = 0
            self.rates = []
        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            self.rates.append(float(ops.convert_to_numpy(self.model.optimizer.learning_rate)))
        def on_epoch_end(self, epoch, logs=None):
            self.epochs += 1

    class WarmUp(keras.callbacks.Callback):
        seen = 0
        def on_train_batch_begin(self, batch, logs=None):
            self.seen += 1
            self.model.optimizer.learning_rate = 0.05 * min(1.0, self.seen / 9)

    def train(name, optimizer, data=None, callbacks=(), **arguments):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
        model.compile(optimizer, "mse", metrics=["mae"])
        seen = Seen()
        given = {"batch_size": 32} if data is None else {}
        history = model.fit(*((x, y) if data is None else (data,)), epochs=3, verbose=0, shuffle=False,
                            callbacks=[*callbacks, seen], **given, **arguments).history
        told[name] = {
            "rate": float(ops.convert_to_numpy(optimizer.learning_rate)), "rates": seen.rates,
            "updates": int(ops.convert_to_numpy(optimizer.iterations)), "batches": seen.batches,
            "variables": len(optimizer.variables), "mae": history["mae"], "loss": history["loss"],
            "weights": [w.tolist() for w in model.get_weights()],
        }
        return model

    SGD = keras.optimizers.SGD
    cosine = train("cosine", SGD(schedules.CosineDecay(0.05, 12), momentum=0.9))
    cosine.save("cosine.keras")
    train("warm-up", SGD(0.0), callbacks=[WarmUp()])
    if sys.argv[1] == "tensorflow":
        import tensorflow as tf
        kept = keras.callbacks.ModelCheckpoint("at-{epoch}-{batch}.weights.h5", save_freq=5, save_weights_only=True)
        train("steps", SGD(schedules.PiecewiseConstantDecay([4, 8], [0.05, 0.01, 0.001])), callbacks=[kept])
        train("averages", SGD(0.05, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=3))
        train("clipped", keras.optimizers.Adam(0.01, global_clipnorm=0.1))
        plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=0, min_delta=10.0)
        train("plateau", SGD(0.05), callbacks=[plateau])
        batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32)
        train("endless", SGD(schedules.ExponentialDecay(0.05, 5, 0.5)), batches, steps_per_epoch=5)
        told["kept"] = sorted(name for name in os.listdir(".") if name.startswith("at-"))
    with open("told.json", "w") as file:
        json.dump(told, file)
"""
SPLIT = {"batch_size": 8, "grad_accumulation": 4}
AS_WRITTEN = {"batch_size": 32, "grad_accumulation": 1}


def plainly(folder: Path, backend: str) -> dict[str, Any]:
    """What the script tells under plain Python."""
    (folder / "train.py").write_text(textwrap.dedent(TRAIN))
    done = subprocess.run(
        [sys.executable, "train.py", backend], cwd=folder, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stdout + done.stderr
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return told


@pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=pytest.mark.slow) for name in ("tensorflow", "jax", "torch")]
)
def test_a_split_batch_trains_to_the_same_end(
    backend: str, tmp_path_factory: pytest.TempPathFactory, write_script: Callable[..., Path]
) -> None:
    plain = plainly(tmp_path_factory.mktemp("plain"), backend)
    script = write_script(TRAIN)
    applied(script, SPLIT, (backend,), framework="keras", as_written=AS_WRITTEN)
    split = json.loads((script.parent / "told.json").read_text())
    assert plain.pop("kept", []) == split.pop("kept", [])
    assert plain.keys() == split.keys()
    for name, before in plain.items():
        check(name, before, split[name])
    loads_without_us(script.parent / "cosine.keras", backend, split["cosine"])


def check(name: str, plain: Mapping[str, Any], split: Mapping[str, Any]) -> None:
    for figure in ("updates", "batches", "variables"):
        assert split[figure] == plain[figure], (name, figure)
    assert split["rates"] == plain["rates"], name
    assert split["rate"] == plain["rate"], name
    for figure in ("loss", "mae"):
        assert split[figure] == pytest.approx(plain[figure], rel=1e-4), (name, figure)
    for one, other in zip(plain["weights"], split["weights"], strict=True):
        assert _flat(other) == pytest.approx(_flat(one), abs=2e-5), name


def loads_without_us(path: Path, backend: str, told: Mapping[str, Any]) -> None:
    """What was saved under us is plain Keras' own: its schedule, its count of updates, its weights."""
    load = f"""
        import os; os.environ["KERAS_BACKEND"] = {backend!r}
        import json, keras
        model = keras.models.load_model({str(path)!r})
        optimizer = model.optimizer
        print(json.dumps({{"rate": float(keras.ops.convert_to_numpy(optimizer.learning_rate)),
                           "updates": int(keras.ops.convert_to_numpy(optimizer.iterations)),
                           "schedule": type(optimizer._learning_rate).__name__,
                           "accumulation": optimizer.gradient_accumulation_steps}}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(load)], capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "rate": told["rate"], "updates": told["updates"], "schedule": "CosineDecay", "accumulation": None,
    }  # fmt: skip


def _flat(values: Any) -> list[float]:
    return [figure for value in values for figure in _flat(value)] if isinstance(values, list) else [values]
