"""Functions that a dataset was made with, when it is made again: checks run by tf_data_trials.py.

What a function reads outside of itself is read when TensorFlow traces it, once, where the script hands it over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.tf_data_trials import Trial, numbers, values

FACTOR = 1


def by_global(x: Any) -> Any:
    """What scripts do with a flag that they set back for the data that validate."""
    return x * FACTOR


def in_a_loop(make: Callable[[int], Any]) -> Any:
    """The first of several datasets that are made in a loop."""
    return [make(0), make(1)][0]


def trained(dataset: Any, trial: Trial) -> list[int]:
    """The numbers of three batches."""
    return values(trial.train(dataset))


def check_a_global_that_changed_since_reaches_no_map() -> None:
    global FACTOR
    for config in ({"parallel_calls": 2}, {"cache": True}, {"parallel_calls": 2, "prefetch": 4, "cache": True}):
        trial = Trial(**config)
        FACTOR = 1
        made = numbers().map(lambda x: x + 1).map(by_global).batch(10)
        FACTOR = 0
        assert trained(made, trial) == list(range(1, 31)), config


def check_a_loop_variable_is_what_it_was_when_the_map_was_made() -> None:
    trial, made = Trial(parallel_calls=2), []
    for factor in (1, 2):
        made.append(numbers().map(lambda x: x * factor).batch(10))  # noqa: B023  # this is what is asked for
    assert trained(made[0], trial) == list(range(30))
    assert trial.watch.applied["parallel_calls"].changed == 1


def check_an_array_that_is_changed_in_place_is_what_it_was() -> None:
    trial, array = Trial(parallel_calls=2), np.ones(1, np.int64)
    made = numbers().map(lambda x: x * array[0]).filter(lambda x: x < 100 * array[0]).batch(10)
    array[:] = 0
    assert trained(made, trial) == list(range(30))


def check_what_interleaves_is_what_it_was() -> None:
    global FACTOR
    FACTOR = 1
    trial = Trial(parallel_calls=2)
    made = numbers(4).interleave(lambda x: tf.data.Dataset.range(10 * FACTOR), cycle_length=1).map(by_global).batch(10)
    FACTOR = 0
    assert trained(made, trial) == [*range(10)] * 3


def check_a_function_of_whole_batches_is_what_it_was() -> None:
    global FACTOR
    trial = Trial(batch_size=20)
    FACTOR = 1
    made = numbers().batch(10).map(by_global)
    FACTOR = 0
    assert trained(made, trial) == list(range(60))


def check_batches_of_another_size_are_refused_where_a_function_is_another_by_now() -> None:
    global FACTOR
    trial = Trial(batch_size=20)
    FACTOR = 1
    made = numbers().batch(10, drop_remainder=True).map(by_global)
    FACTOR = 0
    assert trained(made, trial) == list(range(30))
    evidence, reason = trial.evidence("batch_size")
    assert evidence == "not applicable" and "something else" in reason, (evidence, reason)


def check_batches_of_another_size_are_made_where_functions_are_what_they_were() -> None:
    table = tf.constant([1, 1], tf.int64)
    variable = tf.Variable(1, dtype=tf.int64)
    for function in (lambda x: x + 0, lambda x: x * table[0], lambda x: x * variable, lambda x: x * np.ones(1, int)):
        trial = Trial(batch_size=20)
        made = numbers().batch(10, drop_remainder=True).map(function).prefetch(1)
        assert trained(made, trial) == list(range(60))
        assert trial.evidence("batch_size")[0] == "verified"


def check_a_map_that_is_moved_behind_the_batch_is_what_it_was() -> None:
    global FACTOR
    FACTOR = 1
    trial = Trial(vectorized_map=True)
    made = numbers().map(by_global).batch(10)
    FACTOR = 0
    assert trained(made, trial) == list(range(30))
    assert trial.watch.applied["vectorized_map"].changed == 1


def check_a_function_of_functions_is_looked_at_as_well() -> None:
    global FACTOR
    FACTOR = 1
    trial = Trial(cache=True)
    made = numbers().map(lambda x: x + 1).shuffle(100, seed=1).group_by_window(
        key_func=lambda x: tf.zeros([], tf.int64), reduce_func=lambda key, window: window.batch(10).map(by_global),
        window_size=10,
    )  # fmt: skip
    expected = values(made.take(3))
    FACTOR = 0
    assert sum(trained(made, trial)) > 0, expected


def check_what_a_table_that_may_change_gives_is_not_kept() -> None:
    changing = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 1)
    dense = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 1, -1, -2)
    for table in (changing, dense):
        trial = Trial(cache=True)
        made = numbers(30).map(lambda x, table=table: x * table.lookup(tf.zeros([1], tf.int64))[0]).batch(10)
        trial.train(made, batches=0)
        table.insert(tf.constant([0], tf.int64), tf.constant([5], tf.int64))
        assert values(trial.train(made, batches=0)) == [5 * x for x in range(30)]
        assert "LookupTableFindV2" in trial.watch.refused("cache")


def check_what_a_steady_table_gives_is_kept() -> None:
    steady = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0], [2], tf.int64, tf.int64), 1)
    words = keras.layers.TextVectorization(output_sequence_length=1)
    words.adapt(["0 1 2"])
    for function in (
        lambda x: x * steady.lookup(tf.zeros([], tf.int64)), lambda x: words(tf.strings.as_string(x)),
    ):  # fmt: skip
        trial = Trial(cache=True, parallel_calls=2)
        trial.train(numbers().map(function).batch(10))
        assert trial.watch.applied["cache"].changed == trial.watch.applied["parallel_calls"].changed == 1
