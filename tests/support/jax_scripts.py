"""Made-up scripts that train with JAX alone. Each prints what it trained on, by its own count, and its losses.

They begin with weights of NumPy's: what JAX draws numbers with takes 0.8 s of a core to compile, in each process.
"""

from __future__ import annotations

HEAD = """
import functools, sys
import jax, jax.numpy as jnp, numpy as np
from jax import lax

STEPS, BATCH = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20
data = np.random.default_rng(0)
X = data.normal(size=(100, 8)).astype("float32")
Y = (X @ data.normal(size=(8, 3)).astype("float32")).argmax(1)
def drawn_once(*shape):
    return jnp.asarray(0.3 * data.normal(size=shape), "float32")
params = {"w1": drawn_once(8, 16), "b1": jnp.zeros(16), "w2": drawn_once(16, 3), "b2": jnp.zeros(3)}

def loss_of(params, x, y):
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    logits = hidden @ params["w2"] + params["b2"]
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])

def descend(params, gradients):
    return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, gradients)

def batches():
    done = 0
    while True:
        for start in range(0, len(X), BATCH):
            if done == STEPS:
                return
            done += 1
            yield X[start : start + BATCH], Y[start : start + BATCH]

trained, done_with = 0, None
"""
LOOP = """
try:
    for x, y in batches():
        trained += len(x)
        STEP
        if done_with is not None:
            print("loss", float(done_with).hex())
except BaseException:
    print("trained on", trained, flush=True)
    raise
print("trained on", trained, flush=True)
"""

_BODIES = {
    "jitted": (
        """
@jax.jit
def update(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss
""",
        "params, done_with = update(params, x, y)",
    ),
    "donated, with a key and a step": (
        """
@functools.partial(jax.jit, donate_argnums=0)
def update(state, batch):
    params, key, step = state["params"], state["key"], state["step"]
    key, drawn = jax.random.split(key)
    def noisy(params):
        return loss_of(params, batch["x"] + 0.01 * jax.random.normal(drawn, batch["x"].shape), batch["y"])
    loss, gradients = jax.value_and_grad(noisy)(params)
    return {"params": descend(params, gradients), "key": key, "step": step + 1}, {"loss": loss, "seen": len(batch["y"])}
state = {"params": jax.tree_util.tree_map(jnp.copy, params), "key": jax.random.PRNGKey(1), "step": 0}
""",
        'state, metrics = update(state, batch={"x": x, "y": y}); done_with = metrics["loss"]',
    ),
    "gradients jitted, updates by hand": (
        """
gradient = jax.jit(jax.value_and_grad(loss_of))
""",
        "done_with, gradients = gradient(params, x, y); params = descend(params, gradients)",
    ),
    "nothing jitted": (
        """
""",
        "done_with, gradients = jax.value_and_grad(loss_of)(params, x, y); params = descend(params, gradients)",
    ),
    "an optimizer of JAX's own, by static and named arguments": (
        """
from jax.example_libraries import optimizers
first, updated, params_of = optimizers.adam(1e-2)
@functools.partial(jax.jit, static_argnames="scale")
def update(number, state, *, x, y, scale):
    gradients = jax.grad(lambda params: scale * loss_of(params, x, y))(params_of(state))
    return updated(number, gradients, state)
state, number = first(params), 0
""",
        "state = update(number, state, x=x, y=y, scale=1.0); number += 1",
    ),
    "a method": (
        """
class Trainer:
    def __init__(self, params):
        self.params = params
    @functools.partial(jax.jit, static_argnums=0)
    def update(self, params, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        return descend(params, gradients), loss
    def step(self, x, y):
        self.params, loss = self.update(self.params, x, y)
        return loss
trainer = Trainer(params)
""",
        "done_with = trainer.step(x, y)",
    ),
    "lowered before": (
        """
@jax.jit
def update(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss
update.lower(params, X[:BATCH], Y[:BATCH]).compile()
jax.eval_shape(update, params, X[:BATCH], Y[:BATCH])
""",
        "params, done_with = update(params, x, y)",
    ),
    "another function in each epoch": (
        """
def update_of():
    @jax.jit
    def update(params, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        return descend(params, gradients), loss
    return update
update = None
""",
        "update = update_of() if trained % len(X) == BATCH else update; params, done_with = update(params, x, y)",
    ),
    "compiled anew by each epoch": (
        """
def step(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss
""",
        "params, done_with = jax.jit(step)(params, x, y)",
    ),
}
SCRIPTS = {name: HEAD + body + LOOP.replace("STEP", step) for name, (body, step) in _BODIES.items()}
"""Each takes the number of steps, and the size of a batch (20 as written)."""

_LINEN_STEP = """
from flax import linen as nn
from flax.training import train_state
class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Dense(WIDTH)(x)))
        return nn.Dense(3)(nn.Dropout(0.1, deterministic=not train)(x))
class State(train_state.TrainState):
    batch_stats: dict
    key: jax.Array
@jax.jit
def train_step(state, batch):
    def loss_of(params):
        logits, updates = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats}, batch["x"], True, mutable=["batch_stats"],
            rngs={"dropout": jax.random.fold_in(state.key, state.step)})
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), updates
    (loss, updates), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradients, batch_stats=updates["batch_stats"]), {"loss": loss}
"""


def linen_step(width: int) -> str:
    """A network of flax.linen with batch norm and dropout, its state, and a training step: ``train_step`` of a
    ``State``, which the script makes of a ``Net``.
    """
    return _LINEN_STEP.replace("WIDTH", str(width))
