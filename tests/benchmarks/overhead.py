"""What instrumentation costs, of a step and until the first step: interleaved fresh processes, ratios.

    python tests/benchmarks/overhead.py [--script torch|keras|torch-short|jax-short|keras-on-jax-short|tf-short]
        [--pairs 15] [--told]

A step takes about 10 ms, and less than one where the script's name says ``short``.

Each round runs the same script under plain Python, measured by us ("trial"), and with a config applied by us that
changes nothing that costs time ("apply"), in random order. The script times its own steps, and tells when the first one
ended. Printed for both: the median of the ratios to plain Python of the same round, with its 95% interval (sign test).

With ``--told`` a round is the script under plain Python, and a trial of it with a window of three seconds. Printed: how
long a step is by that window, and with what was taken out of it as autotune's own, as ratios to the script's own mean.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHILD = Path(__file__).parents[2] / "tuner" / "child" / "__main__.py"
TORCH = """
import json, statistics, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(8192, 256), torch.randint(0, 10, (8192,)))
loader = DataLoader(data, batch_size=64, shuffle=True)
layers = [torch.nn.Linear(256, 512), torch.nn.ReLU()]
for _ in range(6):
    layers += [torch.nn.Linear(512, 512), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers, torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ends = []
for epoch in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        ends.append(time.time())
steps = [after - before for before, after in zip(ends[20:], ends[21:])]
print(json.dumps({"step_s": statistics.median(steps), "mean_s": statistics.fmean(steps), "first_step_at": ends[0]}))
"""
KERAS = """
import json, statistics, time, keras, numpy
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
chance = numpy.random.default_rng(0)
x, y = chance.normal(size=(8192, 256)).astype("float32"), chance.integers(0, 10, 8192)
layers = [keras.layers.Dense(512, activation="relu") for _ in range(7)]
model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
ends = []
class Times(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        ends.append(time.time())
model.fit(x, y, batch_size=64, epochs=EPOCHS, verbose=0, callbacks=[Times()])
steps = [after - before for before, after in zip(ends[20:], ends[21:])]
print(json.dumps({"step_s": statistics.median(steps), "mean_s": statistics.fmean(steps), "first_step_at": ends[0]}))
"""
TORCH_SHORT = TORCH.replace("range(6)", "range(0)").replace("256", "32").replace("512", "64")
JAX_SHORT = """
import json, statistics, time, jax, numpy
from jax import numpy as jnp
chance = numpy.random.default_rng(0)
x = chance.normal(size=(8192, 32)).astype("float32")
params = [jnp.asarray(chance.normal(size=shape), "float32") for shape in ((32, 64), (64, 1))]
def loss_of(params, x):
    return ((jax.nn.relu(x @ params[0]) @ params[1] - x.sum(1, keepdims=True)) ** 2).mean()
@jax.jit
def step(params, x):
    return [each - 1e-5 * slope for each, slope in zip(params, jax.grad(loss_of)(params, x))]
ends = []
for epoch in range(EPOCHS):
    for start in range(0, len(x), 64):
        params = step(params, x[start : start + 64])
        ends.append(time.time())
jax.block_until_ready(params)
steps = [after - before for before, after in zip(ends[20:], ends[21:])]
mean_s = statistics.fmean(steps)
print(json.dumps({"step_s": mean_s, "mean_s": mean_s, "first_step_at": ends[0]}))
"""
KERAS_ON_JAX_SHORT = (
    KERAS.replace("import json", "import os; os.environ['KERAS_BACKEND'] = 'jax'\nimport json")
    .replace("import tensorflow as tf\ntf.config.threading.set_intra_op_parallelism_threads(1)\n", "")
    .replace("range(7)", "range(1)").replace("256", "32").replace("512", "64")
)  # fmt: skip
TF_SHORT = """
import json, statistics, time, keras, numpy
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
chance = numpy.random.default_rng(0)
x, y = chance.normal(size=(8192, 32)).astype("float32"), chance.integers(0, 10, 8192)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(8192).batch(64).prefetch(1)
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
optimizer = keras.optimizers.SGD()
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    slopes = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(slopes, model.trainable_variables))
    return loss
ends = []
for epoch in range(EPOCHS):
    for x, y in data:
        train_step(x, y)
        ends.append(time.time())
steps = [after - before for before, after in zip(ends[20:], ends[21:])]
print(json.dumps({"step_s": statistics.median(steps), "mean_s": statistics.fmean(steps), "first_step_at": ends[0]}))
"""
SCRIPTS = {
    "torch": TORCH, "keras": KERAS, "torch-short": TORCH_SHORT, "jax-short": JAX_SHORT,
    "keras-on-jax-short": KERAS_ON_JAX_SHORT, "tf-short": TF_SHORT,
}  # fmt: skip
EPOCHS = {"jax-short": 40, "keras-on-jax-short": 20}
"""Of a script, 4 of the others."""
TOLD_TIMES = 20
"""So many times as many for the figures of a window."""
WINDOW = {
    "warmup_steps": 10, "warmup_s": 1, "block_s": 0.25, "min_blocks": 9999, "min_s": 9999, "max_s": 9999,
    "target_half_width": 0.0,
}  # fmt: skip
TOLD_WINDOW = {**WINDOW, "min_blocks": 12, "min_s": 3, "max_s": 3}


@dataclass(frozen=True)
class Run:
    """The script's own figures: its median and its mean step, and the time from the start to its first step's end."""

    step_s: float
    mean_s: float
    first_step_s: float


def run(script: Path, mode: str) -> Run:
    """One run in a fresh process."""
    began = time.time()
    if mode == "plain":
        printed = started([sys.executable, str(script)], script.parent)
    else:
        with open(os.devnull, "wb") as sink:
            config = {"threads": 1} if mode == "apply" else {}
            printed = child(script, {"mode": mode, "config": config, "window": WINDOW}, sink.fileno())
    told = json.loads(printed.splitlines()[-1])
    return Run(told["step_s"], told["mean_s"], told["first_step_at"] - began)


def told(script: Path) -> tuple[float, float]:
    """How long a step is by the window of a trial, and with what was taken out of it as autotune's own."""
    with (script.parent / "records").open("w+b") as sink:
        child(script, {"mode": "trial", "config": {}, "window": TOLD_WINDOW}, sink.fileno())
        sink.seek(0)
        records = [json.loads(line) for line in sink]
    blocks = [each for each in records if each["kind"] == "block" and each["phase"] == "window"]
    blocks = [each for each in blocks if not each.get("flagged")]  # what is as usual isn't sent
    steps, seconds = (sum(each[name] for each in blocks) for name in ("steps", "seconds"))
    return seconds / steps, (seconds + sum(each.get("instruments_s", 0.0) for each in blocks)) / steps


def child(script: Path, request: dict[str, Any], sink: int) -> str:
    """What a trial or an applied run of the script prints; its records go to ``sink``."""
    whole = {"v": 1, "script": str(script), "argv": [], "device": "cpu", "folder": str(script.parent), **request}
    path = script.parent / "request.json"
    path.write_text(json.dumps(whole))
    variables = {"AUTOTUNE_REQUEST": str(path), "AUTOTUNE_RECORDS_FD": str(sink)}
    return started([sys.executable, str(CHILD)], script.parent, variables, (sink,))


def started(
    command: list[str], folder: Path, variables: Mapping[str, str] | None = None, sinks: tuple[int, ...] = ()
) -> str:
    """What the command prints, on the processor."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", **(variables or {})}
    return subprocess.run(
        command, env=environment, pass_fds=sinks, capture_output=True, text=True, check=True, cwd=folder
    ).stdout


def interval_of_median(values: list[float]) -> tuple[float, float]:
    """Distribution-free 95% interval of the median, from order statistics (Conover, 1999, §3.2)."""
    ordered = sorted(values)
    n = len(ordered)
    rank = max(0, round(n / 2 - 0.98 * n**0.5) - 1)
    return ordered[rank], ordered[n - 1 - rank]


def main() -> None:
    """Runs the rounds and prints a line a mode and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", choices=sorted(SCRIPTS), default="torch")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--told", action="store_true", help="what a trial tells, in place of what it takes")
    options = parser.parse_args()
    epochs = EPOCHS.get(options.script, 4) * (TOLD_TIMES if options.told else 1)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPTS[options.script].replace("EPOCHS", str(epochs)))
        (print_told if options.told else print_cost)(script, options.pairs)


def print_cost(script: Path, pairs: int) -> None:
    """How much longer a step, and the time until the first one, are in a trial and in an applied run."""
    rounds: list[dict[str, Run]] = []
    for _ in range(pairs):
        order = ["plain", "trial", "apply"]
        random.shuffle(order)
        rounds.append({mode: run(script, mode) for mode in order})
    for name, unit, scale in (("step_s", "ms", 1e3), ("first_step_s", "s", 1.0)):
        plain = statistics.median(getattr(found["plain"], name) for found in rounds)
        what = name.removesuffix("_s").replace("_", " ")
        print(f"{what}: median {plain * scale:.2f} {unit} under plain Python, {pairs} runs of each")
        for mode in ("trial", "apply"):
            print_ratios(mode, [getattr(found[mode], name) / getattr(found["plain"], name) for found in rounds])


def print_told(script: Path, pairs: int) -> None:
    """How a step that a window tells compares with that by the script's own clock in the runs before and after."""
    before, net, whole = run(script, "plain").mean_s, list[float](), list[float]()
    for _ in range(pairs):
        found = told(script)
        after = run(script, "plain").mean_s
        net.append(found[0] * 2 / (before + after))
        whole.append(found[1] * 2 / (before + after))
        before = after
    print(f"step: {before * 1e3:.3f} ms under plain Python, by the last of {pairs + 1} runs")
    print_ratios("told", net)
    print_ratios("told, with autotune's own", whole)


def print_ratios(name: str, ratios: list[float]) -> None:
    """A line: their median and its interval."""
    low, high = interval_of_median(ratios)
    print(f"  {name}: {statistics.median(ratios):.4f} times plain, 95% {low:.4f} to {high:.4f}")


if __name__ == "__main__":
    main()
