"""Training steps of a model's own whose numbers of rows are written down: another batch size wouldn't reach them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, keras

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

ROWS = 8


@pytest.mark.parametrize(
    ("kind", "fed_by"),
    [("written", "arrays"), ("asked", "dataset"), *(
        pytest.param(*each, marks=pytest.mark.slow)  # as those
        for each in (("written", "dataset"), ("asked", "arrays"))
    )],
)  # fmt: skip
def test_a_batch_size_is_left_out_where_the_step_draws_as_many_rows(
    begin: Callable[..., Trial], kind: str, fed_by: str
) -> None:
    """A GAN's noise of eight rows beside sixteen pictures: the batch size was verified."""
    import tensorflow as tf

    k = keras()

    class Adversary(k.Model):  # type: ignore[misc, name-defined]  # Keras is imported late
        def __init__(self) -> None:
            super().__init__()
            self.maker = k.Sequential([k.Input((2,)), k.layers.Dense(4)])
            self.judge = k.Sequential([k.Input((4,)), k.layers.Dense(1)])

        def train_step(self, x: Any) -> dict[str, Any]:
            noise = tf.random.normal((ROWS if kind == "written" else tf.shape(x)[0], 2))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.judge(self.maker(noise))) - tf.reduce_mean(self.judge(x))
            self.optimizer.apply(tape.gradient(loss, self.judge.trainable_variables), self.judge.trainable_variables)
            return {"loss": loss}

    trial = begin()
    made = Adversary()
    made.compile("sgd")
    data: Any = arrays(64)[0]
    if fed_by == "dataset":  # of batches whose size the step's graph knows
        data = tf.data.Dataset.from_tensor_slices(data).batch(ROWS, drop_remainder=True)
    made.fit(data, batch_size=ROWS if fed_by == "arrays" else None, verbose=0)
    facts = trial.end()
    assert facts["as_written"]["batch_size"] == ROWS
    assert ("itself draws tensors of 8 rows" in facts["left_out"].get("batch_size", "")) is (kind == "written")


@pytest.mark.parametrize(
    ("kind", "told"),
    [("a function", True), ("an added loss", True), *(
        pytest.param(*each, marks=pytest.mark.slow)  # as those
        for each in (("a class", True), ("its own rows", False), ("a mean", False))
    )],
)  # fmt: skip
def test_a_batch_size_is_left_out_where_a_compiled_loss_is_divided_by_as_many_rows(
    begin: Callable[..., Trial], kind: str, told: bool
) -> None:
    """Twice the batch would have twice the gradient: that was looked for in training steps of the model's own alone."""
    import tensorflow as tf

    k = keras()

    def of(y: Any, found: Any) -> Any:
        losses = tf.reduce_sum((y - found) ** 2, axis=1)
        rows = tf.cast(tf.shape(losses)[0], tf.float32) if kind == "its own rows" else float(ROWS)
        return losses if kind in ("a mean", "an added loss") else tf.reduce_sum(losses) / rows

    class Own(k.losses.Loss):  # type: ignore[misc, name-defined]  # Keras is imported late
        def call(self, y: Any, found: Any) -> Any:
            return of(y, found)

    class Sparse(k.layers.Layer):  # type: ignore[misc, name-defined]  # as above
        def call(self, x: Any) -> Any:
            self.add_loss(0.1 * tf.reduce_sum(tf.reduce_sum(x**2, axis=1)) / ROWS)
            return x

    trial = begin()
    layers = [Sparse()] if kind == "an added loss" else []
    made = k.Sequential([k.Input((4,)), k.layers.Dense(1), *layers])
    made.compile("sgd", "mse" if layers else Own() if kind == "a class" else of)
    x, y = arrays(64)
    made.fit(x, y, batch_size=ROWS, verbose=0)
    facts = trial.end()
    assert facts["as_written"]["batch_size"] == ROWS
    left_out = facts["left_out"].get("batch_size", "")
    assert ("itself divides a sum by 8, the rows of a batch" in left_out) is told, facts["left_out"]


@pytest.mark.parametrize("kind", ["layer", pytest.param("step", marks=pytest.mark.slow)])  # as that one
def test_a_batch_size_is_kept_where_a_mask_has_as_many_positions(begin: Callable[..., Trial], kind: str) -> None:
    """Sequences of 32 in batches of 32: what a layer draws for each position, and a mask, were taken for rows."""
    import tensorflow as tf

    k, rows = keras(), 32

    class Attention(k.layers.Layer):  # type: ignore[misc, name-defined]  # Keras is imported late
        def call(self, x: Any) -> Any:
            later = 1 - tf.linalg.band_part(tf.ones((rows, rows)), -1, 0)
            x = x + 0.1 * (tf.random.normal((rows, 4)) if kind == "layer" else 1.0)
            return tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True) - 1e9 * later), x)

    class Own(k.Model):  # type: ignore[misc, name-defined]  # as above
        def train_step(self, given: Any) -> Any:
            return super().train_step(given)

    trial = begin()
    words = k.Input((rows,))
    found = k.layers.Dense(1)(k.layers.Flatten()(Attention()(k.layers.Embedding(9, 4)(words))))
    made = (Own if kind == "step" else k.Model)(words, found)
    made.compile("sgd", "mse")
    x, y = arrays(64)
    made.fit(x @ x[:rows].T, y, batch_size=rows, verbose=0)
    facts = trial.end()
    assert facts["as_written"]["batch_size"] == rows
    assert "batch_size" not in facts["left_out"], facts["left_out"]
