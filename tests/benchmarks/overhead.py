"""What instrumentation costs, of a step and until the first step: interleaved fresh processes, ratios.

    python tests/benchmarks/overhead.py [--script torch|keras|torch-short|jax-short|keras-on-jax-short] [--pairs 15]

A step takes about 10 ms, and less than one where the script's name says ``short``.

Each round runs the same script under plain Python, measured by us ("trial"), and with a config applied by us that
changes nothing that costs time ("apply"), in random order. The script times its own steps, and tells when the first one
ended. Printed for both: the median of the ratios to plain Python of the same round, with its 95% interval (sign test).
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
from dataclasses import dataclass
from pathlib import Path

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
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        ends.append(time.time())
steps = [after - before for before, after in zip(ends[20:], ends[21:])]
print(json.dumps({"step_s": statistics.median(steps), "first_step_at": ends[0]}))
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
model.fit(x, y, batch_size=64, epochs=4, verbose=0, callbacks=[Times()])
steps = [after - before for before, after in zip(ends[20:], ends[21:])]
print(json.dumps({"step_s": statistics.median(steps), "first_step_at": ends[0]}))
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
for epoch in range(40):
    for start in range(0, len(x), 64):
        params = step(params, x[start : start + 64])
        ends.append(time.time())
jax.block_until_ready(params)
steps = [after - before for before, after in zip(ends[20:], ends[21:])]
print(json.dumps({"step_s": statistics.fmean(steps), "first_step_at": ends[0]}))
"""
KERAS_ON_JAX_SHORT = (
    KERAS.replace("import json", "import os; os.environ['KERAS_BACKEND'] = 'jax'\nimport json")
    .replace("import tensorflow as tf\ntf.config.threading.set_intra_op_parallelism_threads(1)\n", "")
    .replace("range(7)", "range(1)").replace("256", "32").replace("512", "64").replace("epochs=4", "epochs=20")
)  # fmt: skip
SCRIPTS = {
    "torch": TORCH, "keras": KERAS, "torch-short": TORCH_SHORT, "jax-short": JAX_SHORT,
    "keras-on-jax-short": KERAS_ON_JAX_SHORT,
}  # fmt: skip
WINDOW = {
    "warmup_steps": 10, "warmup_s": 1, "block_s": 0.25, "min_blocks": 9999, "min_s": 9999, "max_s": 9999,
    "target_half_width": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """The script's own figures: its median step, and the time from the start of the process to its first step's end."""

    step_s: float
    first_step_s: float


def run(script: Path, mode: str) -> Run:
    """One run in a fresh process."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command, sinks = [sys.executable, str(script)], []
    if mode != "plain":
        request = {
            "v": 1, "mode": mode, "script": str(script), "argv": [], "device": "cpu", "folder": str(script.parent),
            "config": {"threads": 1} if mode == "apply" else {}, "window": WINDOW,
        }  # fmt: skip
        path = script.parent / "request.json"
        path.write_text(json.dumps(request))
        sinks = [os.open(os.devnull, os.O_WRONLY)]
        environment |= {"AUTOTUNE_REQUEST": str(path), "AUTOTUNE_RECORDS_FD": str(sinks[0])}
        command = [sys.executable, str(CHILD)]
    began = time.time()
    process = subprocess.run(
        command, env=environment, pass_fds=sinks, capture_output=True, text=True, check=True, cwd=script.parent
    )
    for sink in sinks:
        os.close(sink)
    told = json.loads(process.stdout.splitlines()[-1])
    return Run(told["step_s"], told["first_step_at"] - began)


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
    options = parser.parse_args()
    rounds: list[dict[str, Run]] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPTS[options.script])
        for _ in range(options.pairs):
            order = ["plain", "trial", "apply"]
            random.shuffle(order)
            rounds.append({mode: run(script, mode) for mode in order})
    for name, unit, scale in (("step_s", "ms", 1e3), ("first_step_s", "s", 1.0)):
        plain = statistics.median(getattr(found["plain"], name) for found in rounds)
        what = name.removesuffix("_s").replace("_", " ")
        print(f"{what}: median {plain * scale:.2f} {unit} under plain Python, {len(rounds)} runs of each")
        for mode in ("trial", "apply"):
            ratios = [getattr(found[mode], name) / getattr(found["plain"], name) for found in rounds]
            low, high = interval_of_median(ratios)
            print(f"  {mode}: {statistics.median(ratios):.4f} times plain, 95% {low:.4f} to {high:.4f}")


if __name__ == "__main__":
    main()
