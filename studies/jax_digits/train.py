"""Train a small convolutional network on scikit-learn's 8x8 handwritten digits with JAX alone."""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load_arrays(seed: int) -> tuple[np.ndarray, ...]:
    """1797 grey images of 8x8 pixels with values 0 to 16, ten classes: training and validation."""
    digits = load_digits()
    images = (digits.images / 16).astype("float32")[..., None]
    train_x, val_x, train_y, val_y = train_test_split(
        images, digits.target, test_size=0.2, random_state=seed, stratify=digits.target
    )
    return train_x, train_y, val_x, val_y


def init_params(key: jax.Array) -> dict:
    shapes = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "dense1": (4 * 4 * 64, 128), "dense2": (128, 10)}
    keys = jax.random.split(key, len(shapes))
    return {
        name: {
            "w": jax.random.normal(each, shape) * np.sqrt(2 / np.prod(shape[:-1])),
            "b": jnp.zeros(shape[-1]),
        }
        for each, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def conv(params: dict, x: jax.Array, stride: int) -> jax.Array:
    made = jax.lax.conv_general_dilated(
        x, params["w"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(made + params["b"])


def logits_of(params: dict, x: jax.Array) -> jax.Array:
    x = conv(params["conv2"], conv(params["conv1"], x, 1), 2)
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ params["dense1"]["w"] + params["dense1"]["b"])
    return x @ params["dense2"]["w"] + params["dense2"]["b"]


def loss_of(params: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    return -jnp.mean(jax.nn.log_softmax(logits_of(params, x))[jnp.arange(len(y)), y])


@partial(jax.jit, static_argnames="lr")
def train_step(params: dict, moments: tuple, step: int, batch: tuple, lr: float) -> tuple:
    """One step of Adam."""
    x, y = batch
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradients)
    rate = lr * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, mean, square)
    return params, (mean, square), loss


@jax.jit
def accuracy(params: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean(logits_of(params, x).argmax(-1) == y)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    train_x, train_y, val_x, val_y = load_arrays(args.seed)
    shuffled = np.random.default_rng(args.seed)
    params = init_params(jax.random.key(args.seed))
    moments = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))
    step = 0
    for epoch in range(args.epochs):
        order = shuffled.permutation(len(train_x))
        for start in range(0, len(order), args.batch_size):
            step += 1
            chosen = order[start : start + args.batch_size]
            params, moments, loss = train_step(params, moments, step, (train_x[chosen], train_y[chosen]), args.lr)
        print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {accuracy(params, val_x, val_y):.4f}")


if __name__ == "__main__":
    main()
