"""What feeds ``Model.fit`` and rests: trials by turns are told how much of it is made at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.in_process import Log
from support.keras_trials import Trial, arrays, begin, keras, model

from tuner.child.turns import Turns

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]
CALLS, SIZE = 4, 10


def of_workers(work: Callable[[], None], queue: int) -> Any:
    """A PyDataset of so many workers, whose queue holds so many batches."""
    x, y = arrays()

    class Batches(keras().utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            work()
            return x[:SIZE], y[:SIZE]

    return Batches(workers=CALLS, max_queue_size=queue)


def of_calls(work: Callable[[], None], queue: int) -> Any:
    """A parallel map of tf.data."""
    import tensorflow as tf

    x, y = (each[:SIZE] for each in arrays())

    def load(number: int) -> Any:
        work()
        return x

    def read(number: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(load, [number], tf.float32), (SIZE, 4)), y

    options = tf.data.Options()
    options.threading.private_threadpool_size = CALLS
    return tf.data.Dataset.range(40).with_options(options).map(read, num_parallel_calls=CALLS).prefetch(queue)


def sleep() -> None:
    time.sleep(0.05)


@pytest.mark.slow  # 6 s beside three others
@pytest.mark.parametrize(
    ("data", "queue", "as_taken"), [(of_workers, 20, False), (of_workers, CALLS, True), (of_calls, 2, True)]
)
def test_turns_are_told_what_rests_makes_at_once(
    begin: Callable[..., Trial], data: Callable[..., Any], queue: int, *, as_taken: bool
) -> None:
    trial, turns = begin(), Turns(Log(), -1)
    told: list[float] = []

    class Look(keras().callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            clock = trial.session.clock
            if batch % 6 == 5:
                clock.ready()
                clock.turns = turns
                trial.adapter.on_block()
                clock.turns = None  # none begins here
                told.append(turns.at_work)

    model().fit(data(sleep, queue), verbose=0, callbacks=[Look()])
    trial.end()
    assert told[-1] == pytest.approx(CALLS * SIZE, rel=0.4) and turns.begins_as_taken is as_taken
