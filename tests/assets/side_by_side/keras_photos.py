"""What main() of studies/keras_photos/train.py does, as functions of what is to be turned."""

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
import train

TIMED_BY = "timed_keras"
BATCH_SIZE = 32
CROPS = 2000
PIPELINE: dict[str, list[Any]] = {"parallel_calls": ["none", "auto"], "prefetch": ["none", "auto"],
                                  "cache": [False, True]}  # fmt: skip


def samples(options: dict[str, Any]) -> int:
    """Of an epoch."""
    return CROPS


def fit(options: dict[str, Any], compiled: dict[str, Any], callback: Any) -> None:
    folder = Path(train.HERE) / "data" / f"train-{CROPS}-0"
    train.cut_crops(folder, CROPS, 0)
    calls = tf.data.AUTOTUNE if options["parallel_calls"] == "auto" else None
    data = tf.data.Dataset.from_tensor_slices(train.list_files(folder)).map(train.decode, num_parallel_calls=calls)
    if options["cache"]:
        data = data.cache()
    data = data.shuffle(1000).map(train.augment, num_parallel_calls=calls).batch(options["batch_size"])
    if options["prefetch"] == "auto":
        data = data.prefetch(tf.data.AUTOTUNE)
    model = train.build_model()
    sgd = keras.optimizers.SGD(0.02, momentum=0.9)
    model.compile(sgd, "sparse_categorical_crossentropy", metrics=["accuracy"], **compiled)
    model.fit(data, epochs=1000, callbacks=[callback], verbose=0)
