"""About as much to do in tf.data as in the step: made-up pictures that Keras rotates in colour and sorts.

As in ``mixed_loop.py`` of PyTorch, what is best depends on both: a faster step is of use where the data keep up, and
the other way round. All passes are one epoch: TensorFlow 2.21 may take seconds to end an iterator that is autotuned (it
waits for the thread that does it), by chance.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf

PICTURES, SIDE, CLASSES = 8192, 24, 10


def augmented(picture: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    picture = tf.cast(picture, tf.float32) / 255
    picture = tf.image.random_hue(picture, 0.1)
    picture = tf.image.random_flip_left_right(picture)
    return tf.image.resize(tf.image.random_crop(picture, (20, 20, 3)), (SIDE, SIDE)), label


def model() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(CLASSES, activation="softmax", dtype="float32"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    chance = np.random.default_rng(0)
    pictures = chance.integers(0, 256, (PICTURES, SIDE, SIDE, 3), dtype=np.uint8)
    labels = chance.integers(0, CLASSES, PICTURES)
    data = tf.data.Dataset.from_tensor_slices((pictures, labels)).shuffle(2048).repeat(args.passes)
    data = data.map(augmented).batch(args.batch_size).prefetch(1)
    trained = model()
    trained.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    trained.fit(data, verbose=0)


if __name__ == "__main__":
    main()
