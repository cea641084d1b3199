"""Every loss of a step is seen in a screen under TensorFlow: in loops of the script's own and in a model's own step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

START = """
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras
    dense = keras.layers.Dense
    generator = keras.Sequential([keras.Input((4,)), dense(8, "relu"), dense(4)])
    judge = keras.Sequential([keras.Input((4,)), dense(8, "relu"), dense(1)])
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
    data = tf.data.Dataset.from_tensor_slices(np.ones((256, 4), "float32")).batch(16)

    def losses(real):
        fake = judge(generator(tf.random.normal((16, 4))))
        right = loss_of(tf.ones((16, 1)), judge(real)) + loss_of(tf.zeros((16, 1)), fake)
        return loss_of(tf.ones((16, 1)), fake), right
"""
LOOP = """
    first, second = keras.optimizers.Adam(), keras.optimizers.Adam()

    DECORATOR
    def step(real):
        with tf.GradientTape() as one, tf.GradientTape() as other:
            fooled, right = losses(real)
        wrong = one.gradient(fooled, generator.trainable_variables)
        seen = other.gradient(right, judge.trainable_variables)
        first.apply_gradients(zip(wrong, generator.trainable_variables))
        second.apply_gradients(zip(seen, judge.trainable_variables))

    for epoch in range(1000):
        for batch in data:
            step(batch)
"""
FIT = """
    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.generator, self.judge = generator, judge
            self.first, self.second = keras.optimizers.Adam(), keras.optimizers.Adam()
            self.fooled, self.right = keras.metrics.Mean("g_loss"), keras.metrics.Mean("d_loss")

        def train_step(self, real):
            with tf.GradientTape() as one, tf.GradientTape() as other:
                fooled, right = losses(real)
            first, second = self.generator.trainable_variables, self.judge.trainable_variables
            self.first.apply_gradients(zip(one.gradient(fooled, first), first))
            self.second.apply_gradients(zip(other.gradient(right, second), second))
            self.fooled.update_state(fooled)
            self.right.update_state(right)
            return {"g_loss": self.fooled.result(), "d_loss": self.right.result()}

    model = Gan()
    model.compile(optimizer="adam")
    model.fit(data, epochs=1000, verbose=0)
"""
WINDOW = {
    "warmup_steps": 0, "warmup_s": 0, "block_s": 0, "min_blocks": 3, "min_s": 0, "max_s": 60, "target_half_width": 0,
    "until_samples": 1600,
}  # fmt: skip


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(LOOP.replace("DECORATOR", "@tf.function"), id="tf.function"),
        pytest.param(LOOP.replace("DECORATOR", ""), id="eager", marks=pytest.mark.slow),
        pytest.param(FIT, id="a training step of the model's own", marks=pytest.mark.slow),
    ],
)
def test_both_losses_of_a_gan_are_seen(
    run_child: Callable[..., Any], write_script: Callable[..., Path], script: str
) -> None:
    ran = run_child(write_script(START + script), window=WINDOW, seed=1)
    assert ran.of("window")[0]["complete"], ran.output
    series: dict[str, list[float]] = {}
    for record in ran.of("loss"):
        series.setdefault(record["site"], []).append(record["value"])
    fooled, right = series.values()
    assert len(fooled) > 20 and len(right) > 20
    # Neither is a mean of both: judging two things costs twice what fooling costs, as long as nothing is learned.
    assert 0.3 < fooled[0] < 1.3 and right[0] == pytest.approx(2 * 0.7, abs=0.6)
    assert abs(right[0] - fooled[0]) > 0.2
    assert [change["path"] > 0 and change["steps"] > 20 for change in ran.of("weights")] == [True, True], "of each"


LATE = """
    import keras, numpy, tensorflow as tf
    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.maker, self.judge = keras.layers.Dense(4), keras.layers.Dense(1)
        def compile(self, makes, judges):
            super().compile()
            self.makes, self.judges = makes, judges
        def train_step(self, data):
            with tf.GradientTape() as one, tf.GradientTape() as other:
                fake = self.judge(self.maker(data))
                right, wrong = tf.reduce_mean((self.judge(data) - 1) ** 2 + fake ** 2), tf.reduce_mean((fake - 1) ** 2)
            taken = (self.judge, one, right, self.judges), (self.maker, other, wrong, self.makes)
            for layer, tape, loss, by in taken:
                weights = layer.trainable_variables
                by.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return {"right": right, "wrong": wrong}
    pair = Pair()
    pair.build = lambda shape: None
    pair.compile(keras.optimizers.Adam(1e-2), keras.optimizers.Adam(2e-2))
    pair.fit(numpy.ones((160, 4), "float32"), batch_size=16, epochs=2, verbose=0)
    print("trained to the end")
"""


@pytest.mark.slow
def test_weights_that_are_made_while_a_step_is_traced_end_no_screen(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Layers that are built by their first call: the script ended with our own ValueError."""
    ran = run_child(write_script(LATE), seed=3)
    assert ran.returncode == 0 and "trained to the end" in ran.output, ran.output
    first, second = ran.of("weights")
    assert min(first["steps"], second["steps"]) >= 18 and min(first["path"], second["path"]) > 0.1
