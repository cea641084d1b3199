"""How far rates by turns are off where a pipeline's elements sleep: real loops of tf.data, Keras, Grain and PyTorch.

    python tests/benchmarks/held_loops.py --trials 2 --seconds 10 tf.data
    .venv-jax/bin/python tests/benchmarks/held_loops.py grain

What sleeps stands for a request to a storage or a network: it comes back while its trial is held. Each loop is run by
itself, then as pairs of trials that take turns, the script as written both times. Prints of each the batches a second
by itself, and what those told by turns are to that; the pairs' seconds tell what turns of other lengths cost. The loops
take hardly any processor time, so that a busy machine does little to them. ``held.py`` has the same on a made-up
machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Outcome, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest

STEP_S = 0.035
ALONE_S = 12.0
TENSORFLOW = """
import time
import numpy as np, tensorflow as tf

def load(number):
    time.sleep(SECONDS * (0.7 + 0.6 * ((int(number) * 7919) % 97) / 96))
    return np.random.default_rng(int(number)).normal(size=(ROWS, 8)).astype("float32")

def read(number):
    x = tf.numpy_function(load, [number], tf.float32)
    x.set_shape((ROWS, 8))
    return x

data = tf.data.Dataset.range(10**6)
DATA
options = tf.data.Options()
options.threading.private_threadpool_size = 64  # what runs functions of the data, as on a large machine
data = data.with_options(options)
weights = tf.Variable(tf.zeros((8, 1)))
optimizer = tf.keras.optimizers.SGD(0.01)

@tf.function
def train(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights - 1.0))
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
    return loss

for x in data:
    train(x)
    time.sleep(STEP_S)
"""
FIT = TENSORFLOW.partition("weights =")[0] + """
class Pace(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(STEP_S)

model = tf.keras.Sequential([tf.keras.layers.Input((8,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data.map(lambda x: (x, tf.reduce_sum(x, 1))), verbose=0, callbacks=[Pace()])
"""
PYDATASET = """
import time
import keras, numpy as np

class Data(keras.utils.PyDataset):
    def __len__(self):
        return 10**5
    def __getitem__(self, number):
        time.sleep(SECONDS * (0.7 + 0.6 * ((int(number) * 7919) % 97) / 96))
        x = np.random.default_rng(int(number)).normal(size=(ROWS, 8)).astype("float32")
        return x, x.sum(1)

class Pace(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(STEP_S)

if __name__ == "__main__":
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(Data(DATA), verbose=0, callbacks=[Pace()])
"""
GRAIN = """
import time
import grain, jax, jax.numpy as jnp, numpy as np
from absl import flags

class Source:
    def __len__(self):
        return 10**6
    def __getitem__(self, number):
        time.sleep(SECONDS * (0.7 + 0.6 * ((int(number) * 7919) % 97) / 96))
        return np.random.default_rng(number).normal(size=(ROWS, 8)).astype("float32")

@jax.jit
def train(weights, x):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.square(x @ w - 1.0)))(weights)
    return weights - 0.01 * gradient, loss

if __name__ == "__main__":
    flags.FLAGS(["train.py"])  # Grain asks whether to profile its workers
    data = grain.MapDataset.source(Source())
    DATA
    weights = jnp.zeros((8, 1))
    for x in data:
        weights, loss = train(weights, x)
        time.sleep(STEP_S)
"""
TORCH = """
import time
import numpy as np, torch

class Source(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, number):
        time.sleep(SECONDS * (0.7 + 0.6 * ((int(number) * 7919) % 97) / 96))
        return np.random.default_rng(number).normal(size=(ROWS, 8)).astype("float32")

weights = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(weights.parameters(), lr=0.01)
for (x) in torch.utils.data.DataLoader(Source(), DATA):
    optimizer.zero_grad()
    (weights(x) - 1).square().mean().backward()
    optimizer.step()
    time.sleep(STEP_S)
"""
MAP = "data = data.map(read, num_parallel_calls={}){}.prefetch(2)"
INTERLEAVE = (
    "data = data.window(64).interleave(lambda d: d.map(read), cycle_length={0}, num_parallel_calls={0}).prefetch(2)"
)
READ = "data = data.to_iter_dataset(grain.ReadOptions(num_threads={0}, prefetch_buffer_size={1}))"
WORKERS = "data = data.to_iter_dataset(grain.ReadOptions(0, 0)).mp_prefetch(grain.MultiprocessingOptions({}))"
LOOPS = {
    "tf.data": (
        ("map, 4 of 0.16 s", TENSORFLOW, MAP.format(4, ""), 0.16, 8),
        ("map, 8 of 0.4 s", TENSORFLOW, MAP.format(8, ""), 0.4, 8),
        ("map, 16 of 1 s", TENSORFLOW, MAP.format(16, ""), 1.0, 8),
        ("map, batch of 8, 8 of 0.05 s", TENSORFLOW, MAP.format(8, ".batch(8)"), 0.05, 1),
        ("map, batch of 8, 64 of 0.4 s", TENSORFLOW, MAP.format(64, ".batch(8)"), 0.4, 1),
        ("interleave, 8 of 0.4 s", TENSORFLOW, INTERLEAVE.format(8), 0.4, 8),
        ("prefetch, 1 of 0.05 s", TENSORFLOW, MAP.format(1, ""), 0.05, 8),
        ("fit, map, 8 of 0.4 s", FIT, MAP.format(8, ""), 0.4, 8),
        ("PyDataset, 8 of 0.4 s", PYDATASET, "workers=8", 0.4, 8),
    ),
    "grain": (
        ("threads, 4 of 0.16 s", GRAIN, READ.format(4, 8), 0.16, 8),
        ("threads, 8 of 0.4 s", GRAIN, READ.format(8, 16), 0.4, 8),
        ("threads, 16 of 1 s", GRAIN, READ.format(16, 32), 1.0, 8),
        ("threads, 16 of 0.8 s, batch of 8", GRAIN, "data = data.batch(8)\n    " + READ.format(16, 32), 0.1, 1),
        ("workers, 4 of 0.2 s", GRAIN, WORKERS.format(4), 0.2, 8),
        ("workers, 8 of 0.4 s", GRAIN, WORKERS.format(8), 0.4, 8),
    ),
    "torch": (
        ("workers, 4 of 0.16 s", TORCH, "batch_size=None, num_workers=4", 0.16, 8),
        ("workers, 8 of 0.4 s", TORCH, "batch_size=None, num_workers=8", 0.4, 8),
    ),
}
"""Name, script, its data, seconds that an element takes, and its rows."""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=LOOPS)
    parser.add_argument("--trials", type=int, default=2, help="pairs of each loop")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a window by turns")
    parser.add_argument("--only", default="", help="loops whose names hold this")
    given = parser.parse_args()
    print(f"{'':34} alone   by turns, to that")
    for name, text, data, seconds, rows in LOOPS[given.kind]:
        if given.only not in name:
            continue
        values = {"DATA": data, "SECONDS": str(seconds), "ROWS": str(rows), "STEP_S": str(STEP_S)}
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            script.write_text(reduce(lambda text, of: text.replace(*of), values.items(), text))
            alone, *told = rates_of(script, given.trials, given.seconds)
        means = " ".join(f"{each / alone:.2f}" for each in told)
        print(f"{name:34} {alone:6.1f}  {statistics.mean(told) / alone:.2f}: {means}", flush=True)


def rates_of(script: Path, pairs: int, seconds: float) -> Iterator[float]:
    """Samples a second by itself, then of each trial of each pair."""
    runner, stop = ProcessRunner(), threading.Event()
    limits = Limits(trial_timeout_s=300.0)

    def ask(name: str, window: Window) -> TrialRequest:
        return TrialRequest(
            script.with_name(name), Script(str(script), ()), cpu_device(), BASELINE, window=window, limits=limits
        )

    alone = runner.run(ask("alone", Window(warmup_s=5.0, min_s=ALONE_S, max_s=ALONE_S, target_half_width=1e-9)), stop)
    yield rate_of(alone)
    for pair in range(pairs):
        began = time.monotonic()
        requests = [ask(f"{pair}-{side}", Window(max_s=seconds)) for side in range(2)]
        for outcome in runner.run_by_turns(requests, stop).outcomes:
            yield rate_of(outcome)
        print(f"a pair took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def rate_of(outcome: Outcome) -> float:
    """As it is told; ends the program where there is none."""
    if outcome.measurement is None:
        sys.exit(f"no figure: {outcome.detail or outcome.reason}")
    return outcome.measurement.rate


if __name__ == "__main__":
    main()
