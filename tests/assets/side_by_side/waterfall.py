"""What main() of studies/waterfall/train.py does, as functions of what is to be turned."""

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
import train

TIMED_BY = "timed_keras"
BATCH_SIZE = 32
CROPS = 1000
SIZE = 384
STEPS = 10
"""Of an epoch: as the script is written, all of them take a quarter of a minute."""
PIPELINE: dict[str, list[Any]] = {
    "input": ["generator", "tfdata"], "run_eagerly": [True, False], "parallel_calls": ["none", "auto"],
    "prefetch": ["none", "auto"], "cache": [False, True],
}  # fmt: skip


def samples(options: dict[str, Any]) -> int:
    """Of an epoch."""
    return STEPS * int(options["batch_size"])


def fit(options: dict[str, Any], compiled: dict[str, Any], callback: Any) -> None:
    folder, batch_size = Path(train.HERE) / "data" / f"train-{CROPS}-{SIZE}-0", options["batch_size"]
    train.cut_crops(folder, CROPS, SIZE, 0)
    files, labels = train.list_files(folder)
    calls = tf.data.AUTOTUNE if options["parallel_calls"] == "auto" else None
    if options["input"] == "tfdata":
        data = tf.data.Dataset.from_tensor_slices((files, labels)).map(train.decode, num_parallel_calls=calls)
        data = data.cache() if options["cache"] else data
        data = data.shuffle(len(files)).map(train.mirror, num_parallel_calls=calls)
        data = data.batch(batch_size, drop_remainder=True).repeat()
        data = data.prefetch(tf.data.AUTOTUNE) if options["prefetch"] == "auto" else data
    else:
        data = train.generate(files, labels, batch_size, 0)
    model = train.build_model()
    model.compile(
        keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"],
        run_eagerly=options["run_eagerly"], **compiled,
    )  # fmt: skip
    model.fit(data, steps_per_epoch=STEPS, epochs=1000, callbacks=[callback], verbose=0)
