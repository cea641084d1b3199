"""Scripts for the contract of adapters: each says what its work takes, and with each step what was traced and used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

HEAD = """
import time
held = b"x" * (600 << 20)
def used():
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmRSS")]
    return int(line.split()[1]) << 10
def alone(work):
    # What the heavy part of a step takes where it is waited for.
    took = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    print("ALONE", min(took), flush=True)
def told(graphs):
    print("STEP", graphs, used(), flush=True)
"""
TORCH = HEAD + """
import torch
from torch._dynamo.utils import counters
wide = torch.rand(400, 400) / 400
def heavy(x):
    made = wide * (1 + 1e-9 * x.mean())
    for _ in range(6):
        made = torch.tanh(made @ wide)
    return 1e-9 * made.mean()
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(8, 1)
    def forward(self, x):
        with torch.no_grad():
            worked = heavy(x)
        return self.last(x) + worked
x, net = torch.rand(20, 8), torch.compile(Net(), backend="eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
alone(lambda: heavy(x).item())
while True:
    optimizer.zero_grad()
    (net(x) ** 2).mean().backward()
    optimizer.step()
    told(counters["stats"]["unique_graphs"])
"""
XLA = HEAD + """
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.debug.metrics as metrics
wide = torch.rand(400, 400).to("xla") / 400
def heavy(x):
    made = wide * (1 + 1e-9 * x.mean())
    for _ in range(6):
        made = torch.tanh(made @ wide)
    return 1e-9 * made.mean()
x, net = torch.rand(20, 8).to("xla"), torch.nn.Linear(8, 1).to("xla")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
alone(lambda: heavy(x).item())
while True:
    optimizer.zero_grad()
    loss = (net(x) ** 2).mean()
    loss.backward()
    with torch.no_grad(), torch.autocast("xla", enabled=False):
        net.bias += heavy(x)
    optimizer.step()
    torch_xla.sync()
    told(metrics.metric_data("CompileTime")[0])
"""
JAX = HEAD + """
import jax, jax.numpy as jnp, numpy
graphs = 0
def compiled(event, seconds, **about):
    global graphs
    graphs += event.endswith("backend_compile_duration")
jax.monitoring.register_event_duration_secs_listener(compiled)
wide = jnp.asarray(numpy.random.default_rng(0).random((400, 400)) / 400, "float32")
def heavy(x):
    made = wide * (1 + 1e-9 * x.mean())
    for _ in range(6):
        made = jnp.tanh(made @ wide)
    return 1e-9 * made.mean()
@jax.jit
def step(weights, x):
    loss, gradient = jax.value_and_grad(lambda weights: ((x @ weights) ** 2).mean())(weights)
    return weights - 0.01 * gradient + heavy(x), loss
weights, x = jnp.ones((8, 1)), jnp.ones((20, 8))
alone_too = jax.jit(heavy)
alone(lambda: alone_too(x).block_until_ready())
while True:
    weights, loss = step(weights, x + 0)
    told(graphs)
"""
TENSORFLOW = HEAD + """
import tensorflow as tf
tf.config.experimental.set_synchronous_execution(False)
wide = tf.random.uniform((400, 400)) / 400
def heavy(x):
    made = wide * (1 + 1e-9 * tf.reduce_mean(x))
    for _ in range(6):
        made = tf.tanh(made @ wide)
    return 1e-9 * tf.reduce_mean(made)
weights, x = tf.Variable(tf.ones((8, 1))), tf.ones((20, 8))
@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2)
    weights.assign_sub(0.01 * tape.gradient(loss, weights) - heavy(x))
    return loss
alone_too = tf.function(heavy)
alone(lambda: alone_too(x).numpy())
for batch in tf.data.Dataset.from_tensors(x).repeat():
    loss = step(batch)
    told(step.experimental_get_tracing_count())
"""
KERAS = 'import os\nos.environ["KERAS_BACKEND"] = "BACKEND"\n' + HEAD + """
import keras, numpy
from keras import ops
if "BACKEND" == "tensorflow":
    import tensorflow
    tensorflow.config.experimental.set_synchronous_execution(False)
traced = 0
def graphs():
    if "BACKEND" != "torch":
        return traced
    from torch._dynamo.utils import counters
    return 1 + counters["stats"]["unique_graphs"]  # it computes call by call, unless a knob has it compile
wide = keras.random.uniform((400, 400)) / 400
class Heavy(keras.layers.Layer):
    def call(self, x):
        global traced
        traced += 1
        made = wide * (1 + 1e-9 * ops.stop_gradient(ops.mean(x)))
        for _ in range(6):
            made = ops.tanh(ops.matmul(made, wide))
        return x + 1e-9 * ops.stop_gradient(ops.mean(made))
class Steps(keras.callbacks.Callback):
    async_safe = True  # or Keras waits for each step's loss
    def on_train_batch_end(self, batch, logs=None):
        told(graphs())
x = numpy.ones((200, 8), "float32")
by_itself = keras.Sequential([keras.Input((8,)), Heavy()])
alone(lambda: by_itself.predict_on_batch(x[:20]))
model = keras.Sequential([keras.Input((8,)), Heavy(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=20, epochs=100_000, verbose=0, callbacks=[Steps()])
"""


@dataclass(frozen=True)
class Contract:
    """One adapter's script, and the knobs that are turned in it."""

    script: str
    device: str = "cpu"
    config: dict[str, Any] = field(default_factory=dict)


_XLA, _SLOW = pytest.mark.xla, pytest.mark.slow
ADAPTERS = [
    pytest.param(Contract(TORCH, config={"optimizer": "foreach"}), id="torch"),
    pytest.param(Contract(XLA, "xla", {"precision": "bf16"}), id="torch_xla", marks=_XLA),
    pytest.param(Contract(JAX, config={"threads": 1}), id="jax"),
    pytest.param(Contract(TENSORFLOW, config={"jit_compile": True}), id="tensorflow"),
    *(
        pytest.param(
            Contract(KERAS.replace("BACKEND", backend), config={"grad_accumulation": 2}), id=f"keras on {backend}",
            marks=_SLOW,
        )
        for backend in ("tensorflow", "jax", "torch")
    ),
]  # fmt: skip
