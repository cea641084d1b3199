"""Keras on JAX over several devices of one process (``keras.distribution``): batches and profiles of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
Write = Callable[..., Path]
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}
ROWS, SIZE, EPOCHS, DEVICES = 240, 20, 3, 4
SCRIPT = f"""
import os
import sys
os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count={DEVICES}"
import numpy as np
import keras

kind = sys.argv[1]
devices = keras.distribution.list_devices()
if kind == "model":
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout["dense.*kernel"] = (None, "model")
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"))
elif kind != "none":
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
keras.utils.set_random_seed(0)
x, y = np.random.rand({ROWS}, 8).astype("float32"), np.random.rand({ROWS}, 1).astype("float32")
model = keras.Sequential([keras.layers.Input([8]), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)])
model.compile(keras.optimizers.SGD(0.01), "mse")

class Tell(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        print("loss", float(logs["loss"]).hex())

if kind == "batches":
    for _ in range({EPOCHS}):
        for start in range(0, {ROWS}, {SIZE}):
            model.train_on_batch(x[start : start + {SIZE}], y[start : start + {SIZE}])
else:
    model.fit(x, y, batch_size={SIZE}, epochs={EPOCHS}, verbose=0, callbacks=[Tell()])
print("trained on", {EPOCHS * ROWS})
"""


def known_by(ran: Any) -> dict[str, Any]:
    """What a study knows of the script from that run."""
    return {name: value for name, value in ran.facts.items() if name not in ("kind", "t")}


@pytest.mark.slow  # another backend; JAX by itself: unit/child/test_jax_many_devices.py
@pytest.mark.parametrize(("kind", "devices"), [("data", 4), ("model", 4), ("batches", 4), ("none", 1)])
def test_a_batch_is_what_all_devices_share(kind: str, devices: int, run_child: Run, write_script: Write) -> None:
    ran = run_child(write_script(SCRIPT), argv=(kind,), window=WHOLE)
    assert ran.returncode == 0, ran.output
    facts = ran.facts
    told = (facts["unit"], facts["steps"], facts["samples"], facts["devices"])
    assert told == ("samples", EPOCHS * ROWS // SIZE, EPOCHS * ROWS, devices), facts["remarks"]


@pytest.mark.slow
def test_steps_in_one_call_train_as_single_ones(run_child: Run, write_script: Write) -> None:
    script = write_script(SCRIPT)
    as_written = run_child(script, argv=("data",), window=WHOLE)
    turned = run_child(script, {"steps_per_execution": 4}, argv=("data",), window=WHOLE, knowledge=known_by(as_written))
    assert turned.evidence("steps_per_execution") == "verified", turned.output
    assert (turned.facts["samples"], turned.facts["devices"]) == (EPOCHS * ROWS, DEVICES)
    told = [re.findall(r"^loss (\S+)$", ran.output, re.MULTILINE) for ran in (as_written, turned)]
    assert told[0] == told[1] and len(told[0]) == EPOCHS


@pytest.mark.slow  # of JAX' own devices: test_jax_devices.py; of a strategy's replicas: test_tf_devices.py
@pytest.mark.parametrize(
    ("kind", "devices", "says"),
    [
        ("none", 4, "error: the profile was proven on 4 devices, and the script computes on one device"),
        ("data", 4, "in effect: batch_size"),
    ],
)
def test_a_profile_is_for_as_many_devices(
    kind: str, devices: int, says: str, run_child: Run, write_script: Write
) -> None:
    ran = run_child(
        write_script(SCRIPT), {"batch_size": 40}, argv=(kind,), mode="apply", knowledge={"devices": devices}
    )
    assert says in ran.output and ran.returncode == (2 if "error" in says else 0), ran.output
