"""What the loops of the tests train: a classifier, and two networks that train each other."""

from __future__ import annotations

from typing import Any

from support.tf_here import keras, tf

SAMPLES = 50


def batches(batch: int = 8, samples: int = SAMPLES) -> Any:
    x, y = tf.random.normal([samples, 8]), tf.random.uniform([samples], 0, 3, tf.int32)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(samples).batch(batch)


class Net:
    """A small classifier, its optimizer, its training step and its scores."""

    def __init__(self, **options: Any) -> None:
        layers = keras.layers
        self.model = keras.Sequential([layers.Input([8]), layers.Dense(16, activation="relu"), layers.Dense(3)])
        self.optimizer = keras.optimizers.SGD(0.1, **options)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.losses: list[float] = []

    def step(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x))
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    def score(self, x: Any, y: Any) -> Any:
        return self.loss(y, self.model(x))


class Gan:
    """Two networks that train each other; ``rows`` of noise, None for as many as the batch has."""

    def __init__(self, rows: int | None) -> None:
        layers = keras.layers
        self.rows = rows
        self.generator = keras.Sequential([layers.Input([4]), layers.Dense(8)])
        self.critic = keras.Sequential([layers.Input([8]), layers.Dense(4), layers.Dropout(0.3), layers.Dense(1)])
        self.optimizers = keras.optimizers.Adam(), keras.optimizers.Adam()
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def step(self, x: Any) -> None:
        noise = tf.random.normal([self.rows or x.shape[0], 4])
        with tf.GradientTape() as first, tf.GradientTape() as second:
            fake = self.critic(self.generator(noise), training=True)
            real = self.critic(x, training=True)
            deceive = self.loss(tf.ones_like(fake), fake)
            tell = self.loss(tf.ones_like(real), real) + self.loss(tf.zeros_like(fake), fake)
        for tape, loss, model, optimizer in zip(
            (first, second), (deceive, tell), (self.generator, self.critic), self.optimizers, strict=True
        ):
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
