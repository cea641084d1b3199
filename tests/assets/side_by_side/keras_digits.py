"""What main() of studies/keras_digits/train.py does, as functions of what is to be turned."""

from typing import Any

import keras
import train

TIMED_BY = "timed_keras"
BATCH_SIZE = 64
PIPELINE: dict[str, list[Any]] = {}


def samples(options: dict[str, Any]) -> int:
    """Of an epoch."""
    return len(train.load_arrays(0)[0])


def fit(options: dict[str, Any], compiled: dict[str, Any], callback: Any) -> None:
    train_x, train_y, _, _ = train.load_arrays(0)
    model = train.build_model()
    model.compile(
        keras.optimizers.AdamW(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"], **compiled
    )
    model.fit(train_x, train_y, batch_size=options["batch_size"], epochs=1000, callbacks=[callback], verbose=0)
