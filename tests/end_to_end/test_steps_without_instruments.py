"""Steps that go without autotune's instruments are the script's own: the same training, counted all the same."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from overhead import EPOCHS, SCRIPTS, TOLD_TIMES
from overhead import run as run_plain
from overhead import told as told_by_trial

from tuner.child.words import INSTRUMENTS

Run = Callable[..., Any]
Write = Callable[..., Path]

WINDOW = {"warmup_steps": 10, "warmup_s": 0.3, "min_blocks": 4, "min_s": 0.5, "max_s": 0.5, "target_half_width": 0.0}
SHOWN = 1500
"""The loss of this step is printed: it comes in the stretches."""
TORCH = f"""
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(4096, 8)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=16, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
averaged = torch.optim.swa_utils.AveragedModel(model)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 400, 0.9)
steps = 0
try:
    while steps < 60_000:
        for given, wanted in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(given).squeeze(1), wanted)
            loss.backward()
            steps += 1
            if steps == {SHOWN}:
                print("loss", loss.item())
            optimizer.step()
            schedule.step()
            averaged.update_parameters(model)
            if steps == {SHOWN} and "--until-shown" in __import__("sys").argv:
                raise SystemExit
finally:
    print("took", steps)
"""
JAX = f"""
import jax, numpy
from jax import numpy as jnp
chance = numpy.random.default_rng(0)
x = chance.normal(size=(4096, 8)).astype("float32")
weights, steps = jnp.zeros(8), 0
@jax.jit
def step(weights, x):
    loss, slope = jax.value_and_grad(lambda w: ((x @ w - x.sum(1)) ** 2).mean())(weights)
    return weights - 0.001 * slope, loss
try:
    while steps < 400_000:
        for start in range(0, len(x), 16):
            weights, loss = step(weights, x[start : start + 16])
            steps += 1
            if steps == {SHOWN}:
                print("loss", float(loss))
                if "--until-shown" in __import__("sys").argv:
                    raise SystemExit
finally:
    print("took", steps)
"""
KERAS = f"""
import keras, numpy
keras.utils.set_random_seed(0)
x = numpy.random.default_rng(0).normal(size=(4096, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
class Counts(keras.callbacks.Callback):
    steps = 0
    def on_train_batch_end(self, batch, logs=None):
        Counts.steps += 1
        if Counts.steps == {SHOWN}:
            print("loss", float(numpy.abs(self.model.get_weights()[0]).sum()))
            if "--until-shown" in __import__("sys").argv:
                raise SystemExit
try:
    model.fit(x, x.sum(1), batch_size=16, epochs=400, verbose=0, shuffle=False, callbacks=[Counts()])
finally:
    print("took", Counts.steps)
"""
LOOPS = {"torch": TORCH, "jax": JAX, "keras": KERAS}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_is_counted_and_trains_as_under_plain_python(kind: str, run_child: Run, write_script: Write) -> None:
    script = write_script(LOOPS[kind])
    plain = subprocess.run(
        [sys.executable, str(script), "--until-shown"], capture_output=True, text=True, timeout=240, check=True
    )
    ran = run_child(script, window=WINDOW)
    assert any(INSTRUMENTS in remark for remark in ran.facts["remarks"]), ran.facts["remarks"]
    (shown,) = re.findall(r"^loss \S+$", plain.stdout, re.MULTILINE)
    assert shown in ran.output
    taken = int(re.findall(r"^took (\d+)$", ran.output, re.MULTILINE)[0])
    # The last one unwinds the script as it ends, which has counted it by then in one of the three loops.
    assert ran.facts["steps"] == taken + (kind != "torch")
    assert ran.facts["samples"] == pytest.approx(16 * taken, rel=0.001)
    if kind == "torch":
        assert ran.facts["optimizer_steps"] == pytest.approx(taken, rel=0.005)
        assert ran.facts["averagings"] == pytest.approx(taken, abs=1)
        assert ran.facts["backwards"] == pytest.approx(taken, rel=0.005)


def test_knobs_act_in_steps_without_the_instruments(run_child: Run, write_script: Write) -> None:
    """As under plain Python with autocast around the call, in each step."""
    text = TORCH.replace(
        "steps = 0\n",
        "steps, kinds = 0, set()\nmodel[0].register_forward_hook(lambda m, given, made: kinds.add(str(made.dtype)))\n",
    ).replace('print("took", steps)', 'print("took", steps, *kinds)')
    ran = run_child(write_script(text), config={"precision": "bf16"}, window=WINDOW)
    assert any(INSTRUMENTS in remark for remark in ran.facts["remarks"]), ran.facts["remarks"]
    assert re.search(r"^took \d+ torch.bfloat16$", ran.output, re.MULTILINE), ran.output[-500:]


@pytest.mark.timed
@pytest.mark.parametrize("kind", ["jax-short", pytest.param("torch-short", marks=pytest.mark.slow)])
def test_a_short_step_is_told_as_it_is_under_plain_python(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPTS[kind].replace("EPOCHS", str(TOLD_TIMES * EPOCHS.get(kind, 4))))
    before = run_plain(script, "plain").mean_s
    net_s, whole_s = told_by_trial(script)
    plain_s = (before + run_plain(script, "plain").mean_s) / 2
    assert whole_s > 1.2 * plain_s
    assert 0.8 * plain_s < net_s < 1.2 * plain_s
