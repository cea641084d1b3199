"""How fast one setting trains, in samples a second: an epoch to warm up, then as many as take three seconds."""

import os
import time
from typing import Any

import keras
import tensorflow as tf

TIMED_S = 3.0


def space(parts: Any) -> dict[str, list[Any]]:
    """What is turned, and to which values; the script's own come first."""
    cores = len(os.sched_getaffinity(0))
    return {
        "batch_size": [parts.BATCH_SIZE * factor for factor in (1, 2, 4, 8, 16)],
        **parts.PIPELINE,
        "threads": list(dict.fromkeys([cores, 1])),
        "precision": ["fp32", "bf16"],
        "steps_per_execution": [1, 4, 16],
        "jit_compile": [False, True],
    }


class Timer(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training once it was timed for long enough."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples, self.start, self.rate = samples, 0.0, 0.0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if epoch == 0:
            self.start = now
        elif now - self.start > TIMED_S:
            self.rate = self.samples * epoch / (now - self.start)
            self.model.stop_training = True


def samples_per_second(parts: Any, options: dict[str, Any]) -> float:
    tf.config.threading.set_intra_op_parallelism_threads(options["threads"])
    if options["precision"] == "bf16":
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    compiled = {"steps_per_execution": options["steps_per_execution"]}
    if options["jit_compile"]:
        compiled["jit_compile"] = True
    timer = Timer(parts.samples(options))
    parts.fit(options, compiled, timer)
    return timer.rate
