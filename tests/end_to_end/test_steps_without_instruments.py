"""Steps that go without autotune's instruments are the script's own: the same training, counted all the same."""

from __future__ import annotations

import os
import re
import statistics
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

WINDOW = {"warmup_steps": 10, "warmup_s": 0.1, "min_blocks": 4, "min_s": 0.3, "max_s": 0.3, "target_half_width": 0.0}
HEAD = """
import sys
ours = sys.modules.get("_autotune_child.instruments")
if ours is not None:  # however slow the machine is; how well it is known, and that it's more than 0, is another test's
    ours.SHORT_STEP_S, ours.MOST_S, ours.PRECISION = 10.0, 60.0, 10.0
    told = ours.Instruments._tell
    ours.Instruments._tell = lambda self, own_s, step_s: told(self, max(own_s, 1e-6), step_s)
most, steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6, 0
"""
TORCH = f"""{HEAD}
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(4096, 8)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=16, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
averaged = torch.optim.swa_utils.AveragedModel(model)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.9)
try:
    while steps < most:
        for given, wanted in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(given).squeeze(1), wanted)
            loss.backward()
            steps += 1
            if steps % 50 == 0:
                print("loss", loss.item())
            optimizer.step()
            schedule.step()
            averaged.update_parameters(model)
            if steps >= most:
                break
finally:
    print("took", steps)
"""
JAX = f"""{HEAD}
import jax, numpy
from jax import numpy as jnp
chance = numpy.random.default_rng(0)
x = chance.normal(size=(4096, 8)).astype("float32")
weights = jnp.zeros(8)
@jax.jit
def step(weights, x):
    loss, slope = jax.value_and_grad(lambda w: ((x @ w - x.sum(1)) ** 2).mean())(weights)
    return weights - 0.001 * slope, loss
try:
    while steps < most:
        start = steps * 16 % len(x)
        weights, loss = step(weights, x[start : start + 16])
        steps += 1
        if steps % 50 == 0:
            print("loss", float(loss))
finally:
    print("took", steps)
"""
KERAS = f"""{HEAD}
import keras, numpy
keras.utils.set_random_seed(0)
x = numpy.random.default_rng(0).normal(size=(16 * 4096, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
class Counts(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global steps
        steps += 1
        if steps % 50 == 0:
            print("loss", float(numpy.abs(self.model.get_weights()[0]).sum()))
        if steps >= most:
            raise SystemExit
try:
    model.fit(x, x.sum(1), batch_size=16, epochs=100, verbose=0, shuffle=False, callbacks=[Counts()])
finally:
    print("took", steps)
"""
LOOPS = {"torch": TORCH, "jax": JAX, "keras": KERAS}


def losses_of(output: str) -> list[str]:
    """Those that a loop prints."""
    return re.findall(r"^loss (\S+)$", output, re.MULTILINE)


@pytest.mark.slow  # with knobs: below
@pytest.mark.parametrize("kind", ["torch", *(pytest.param(it, marks=pytest.mark.slow) for it in ("jax", "keras"))])
def test_a_loop_is_counted_and_trains_as_under_plain_python(kind: str, run_child: Run, write_script: Write) -> None:
    script = write_script(LOOPS[kind])
    ran = run_child(script, window=WINDOW)
    assert any(INSTRUMENTS in remark for remark in ran.facts["remarks"]), ran.facts["remarks"]
    taken = int(re.findall(r"^took (\d+)$", ran.output, re.MULTILINE)[0])
    plain = subprocess.run(
        [sys.executable, str(script), str(taken)], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, timeout=240, check=True,
    )  # fmt: skip
    assert losses_of(ran.output) == losses_of(plain.stdout) != []
    # The last one unwinds the script as it ends, which has counted it by then in one of the three loops.
    assert ran.facts["steps"] == taken + (kind != "torch")
    assert ran.facts["samples"] == pytest.approx(16 * ran.facts["steps"], rel=0.001)
    if kind == "torch":
        assert ran.facts["optimizer_steps"] == pytest.approx(taken, rel=0.01)
        assert ran.facts["averagings"] == pytest.approx(taken, abs=1)
        assert ran.facts["backwards"] == pytest.approx(taken, rel=0.01)


@pytest.mark.timed  # so many steps within its window
def test_knobs_act_in_steps_without_the_instruments(run_child: Run, write_script: Write) -> None:
    """As under plain Python with autocast around the call, in each step."""
    text = TORCH.replace(
        "averaged =",
        "kinds = set()\nmodel[0].register_forward_hook(lambda m, given, made: kinds.add(str(made.dtype)))\naveraged =",
    ).replace('print("took", steps)', 'print("took", steps, *kinds)')
    ran = run_child(write_script(text), config={"precision": "bf16"}, window=WINDOW)
    assert any(INSTRUMENTS in remark for remark in ran.facts["remarks"]), ran.facts["remarks"]
    [taken] = re.findall(r"^took (\d+) torch.bfloat16$", ran.output, re.MULTILINE)
    assert ran.facts["steps"] == int(taken), ran.output[-500:]


@pytest.mark.slow  # what is told of a short step: unit/child/test_instruments.py; that real ones go without: above
@pytest.mark.timed
@pytest.mark.parametrize("kind", ["jax-short", "torch-short"])
def test_a_short_step_is_told_as_it_is_under_plain_python(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPTS[kind].replace("EPOCHS", str(TOLD_TIMES * EPOCHS.get(kind, 4))))
    ratios, before = list[float](), run_plain(script, "plain").mean_s
    while len(ratios) < 3 and sum(0.6 < each < 1.6 for each in ratios) < 2:  # plain runs differ by a third themselves
        net_s, whole_s = told_by_trial(script)
        after = run_plain(script, "plain").mean_s
        ratios.append(2 * net_s / (before + after))
        before = after
        assert whole_s > 1.2 * net_s
    assert 0.6 < statistics.median(ratios) < 1.6, ratios
