"""What lies ready in a pipeline of tf.data: checks run by tf_data_trials.py."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tuner.child.tensorflow.data.ready import ReadyWatch, model_of, read


def soon(look: Any, wanted: object) -> None:
    """Waits until what is looked at is as wanted."""
    for _ in range(100):
        if look() == wanted:
            return
        time.sleep(0.02)
    assert look() == wanted


def check_batches_and_samples_below_them_are_told() -> None:
    iterator = iter(tf.data.Dataset.range(1000).prefetch(40).batch(8).prefetch(5))
    next(iterator)
    soon(lambda: (read(model_of(tf, iterator)).batches, read(model_of(tf, iterator)).samples), (5, 40))
    watch = ReadyWatch(tf)
    watch.fetches_from(iterator)
    assert watch.samples(8) is None, "what came before it may have had another queue"
    assert watch.was_seen
    assert watch.samples(8) == 5 * 8 + 40
    assert watch.capacity(8) == 10


def check_a_shuffles_buffer_is_no_stock() -> None:
    iterator = iter(tf.data.Dataset.range(1000).shuffle(100).batch(8).prefetch(5))
    next(iterator)
    soon(lambda: read(model_of(tf, iterator)).batches, 5)
    assert read(model_of(tf, iterator)).samples == 0


def check_what_lies_below_a_filter_is_left_out() -> None:
    iterator = iter(tf.data.Dataset.range(1000).prefetch(40).filter(lambda x: x % 2 == 0).batch(8).prefetch(5))
    next(iterator)
    soon(lambda: read(model_of(tf, iterator)).batches, 5)
    assert read(model_of(tf, iterator)).samples == 0


def check_what_an_interleave_has_made_is_told_and_nothing_below_it() -> None:
    """More comes to lie there while its trial is held, and a loop lived on that unseen. A later epoch fills it anew."""
    whole = tf.data.Dataset.range(1000)
    for data, batches, samples in ((whole.batch(8), 2 + 36, 0), (whole, 2, 36)):
        dataset = tf.data.Dataset.range(100).prefetch(40).interleave(
            lambda x, inner=data: inner, cycle_length=4, num_parallel_calls=4
        )  # fmt: skip
        dataset = (dataset if batches > 2 else dataset.batch(8)).prefetch(2)
        watch, kept, most = ReadyWatch(tf), [], math.ceil(batches + samples / 8)
        for fetched, unseen in ((2, 1), (most, most - 1)):
            kept.append(iter(dataset))
            watch.fetches_from(kept[-1])
            told = []
            for _ in range(fetched):
                next(kept[-1])
                soon(partial(_lies_ready, kept[-1]), (batches, samples))
                told.append(watch.samples(8))
            assert told == [None] * unseen + [8.0 * batches + samples] * (fetched - unseen)
        assert watch.capacity(8) == 2


def _lies_ready(iterator: Any) -> tuple[int, int]:
    stock = read(model_of(tf, iterator))
    return stock.batches, stock.samples


def check_the_rest_of_an_epoch_is_no_stock() -> None:
    known, unknown = tf.data.Dataset.range(80), tf.data.Dataset.range(80).filter(lambda x: x < 80)
    for dataset in (known, unknown):
        iterator = iter(dataset.batch(8).prefetch(20))
        next(iterator)
        soon(lambda looked=iterator: read(model_of(tf, looked)).batches, 9)
        watch = ReadyWatch(tf)
        watch.fetches_from(iterator)
        watch.samples(8)
        next(iterator)
        assert watch.samples(8) is None


def _looks_after(watch: ReadyWatch, iterator: Any, fetched: Sequence[int]) -> list[float | None]:
    """What lies ready after so many of ten batches each of an iteration that begins."""
    told, before = [], 0
    watch.fetches_from(iterator)
    for number in fetched:
        for _ in range(number - before):
            next(iterator)
        before = number
        soon(lambda: read(model_of(tf, iterator)).batches, int(number < 10))
        told.append(watch.samples(8))
    return told


def check_an_end_that_comes_as_a_surprise_is_known_the_second_time() -> None:
    """What is over at the end was taken for a queue that ran empty, as that of a loader that is too slow."""
    dataset = tf.data.Dataset.range(80).filter(lambda x: x < 80).batch(8).prefetch(1)
    watch = ReadyWatch(tf)

    def looks(*fetched: int) -> list[float | None]:
        """What lies ready after so many batches each of a new iteration."""
        return _looks_after(watch, iter(dataset), fetched)

    assert looks(1) == [None]
    assert looks(3, 5, 10) == [None, 8, 0], "nobody knew, and one that was broken off says nothing"
    assert looks(3, 5, 10) == [None, 8, None]
    assert looks(1) == [None]
    assert looks(3, 5, 8, 9, 10) == [None, 8, 8, None, None], "an iteration that was broken off says nothing"


def check_an_end_is_known_of_data_that_are_made_anew_for_each_epoch() -> None:
    """As those of each call of ``fit``."""
    watch, kept = ReadyWatch(tf), []

    def looks(*fetched: int) -> list[float | None]:
        """What lies ready after so many batches each of data made anew."""
        dataset = tf.data.Dataset.range(80).filter(lambda x: x < 80).batch(8).prefetch(1)
        kept.append(iter(dataset))
        return _looks_after(watch, kept[-1], fetched)

    assert looks(3, 5, 10) == [None, 8, 0], "nobody knew"
    assert looks(3, 5, 10) == [None, 8, None]
    assert looks(1) == [None]
    assert looks(3, 8, 9, 10) == [None, 8, None, None]


def check_a_queue_that_a_later_epoch_fills_anew_is_told_once_it_has_been_full() -> None:
    """What fills it was taken for a loader that is faster than the loop; nobody sees how the epoch's end empties it."""
    dataset = tf.data.Dataset.range(800).batch(8).prefetch(5)
    watch, kept = ReadyWatch(tf), []

    def looks() -> list[float | None]:
        """After each of the first seven batches of a new iteration."""
        iterator, told = iter(dataset), []
        kept.append(iterator)
        watch.fetches_from(iterator)
        for _ in range(7):
            next(iterator)
            soon(lambda: read(model_of(tf, iterator)).batches, 5)
            told.append(watch.samples(8))
        return told

    assert looks() == [None, *[40.0] * 6], "a slow first step lets a queue fill that the loop may live on"
    assert looks() == [None] * 4 + [40.0] * 3


def check_data_without_an_end_may_stand_still() -> None:
    iterator = iter(tf.data.Dataset.range(80).repeat().batch(8).prefetch(20))
    next(iterator)
    soon(lambda: read(model_of(tf, iterator)).batches, 20)
    watch = ReadyWatch(tf)
    watch.fetches_from(iterator)
    assert [watch.samples(8) for _ in range(3)] == [None, 160, 160]


def check_what_cannot_be_read_is_said() -> None:
    options = tf.data.Options()
    options.autotune.enabled = False
    iterator = iter(tf.data.Dataset.range(80).batch(8).prefetch(20).with_options(options))
    watch = ReadyWatch(tf)
    assert not watch.is_unseen, "nothing was asked yet"
    watch.fetches_from(iterator)
    assert watch.samples(8) is None and watch.is_unseen
    assert watch.capacity(8) == 0


def _sleeping(calls: int, *, batch: int = 0) -> Any:
    """An iterator whose elements take 0.1 s each, in calls that sleep at once; they are put together to batches."""

    def load(number: int) -> Any:
        time.sleep(0.1)
        return number

    options = tf.data.Options()
    options.threading.private_threadpool_size = calls
    dataset = tf.data.Dataset.range(10**6).with_options(options)
    mapped = dataset.map(lambda number: tf.numpy_function(load, [number], tf.int64), num_parallel_calls=calls)
    return iter(mapped.batch(batch) if batch else mapped)


def _at_work(iterator: Any, size: int, computing: float = 0.0) -> float:
    """The samples that are made at once, in batches of that size, by ten looks of a loop that waits for each batch."""
    watch, told = ReadyWatch(tf), 0.0
    watch.fetches_from(iterator)
    for _ in range(10):
        for _ in range(4):
            next(iterator)
        watch.samples(size)
        told = watch.at_work(size, computing)
    return told


def check_calls_that_sleep_are_at_work_at_once() -> None:
    """Of ready-made batches each call makes one; where they are batched behind it, a sample."""
    assert 0.6 * 4 * 16 < _at_work(_sleeping(4), 16) < 1.2 * 4 * 16
    assert 0.6 * 8 < _at_work(_sleeping(8, batch=4), 4) < 1.2 * 8


def check_what_is_interleaved_is_at_work_at_once() -> None:
    def load(number: int) -> Any:
        time.sleep(0.05)
        return number

    options = tf.data.Options()
    options.threading.private_threadpool_size = 4
    files = tf.data.Dataset.range(10**6).with_options(options).window(3)  # many of them end while it is looked at
    read = files.interleave(
        lambda file: file.map(lambda number: tf.numpy_function(load, [number], tf.int64)),
        cycle_length=4, num_parallel_calls=4,
    )  # fmt: skip
    assert 0.5 * 4 * 16 < _at_work(iter(read), 16) < 1.5 * 4 * 16


def check_what_computes_is_not_told_to_rest() -> None:
    dataset = tf.data.Dataset.range(10**6).map(
        lambda number: tf.reduce_sum(tf.linalg.matmul(*[tf.random.normal((700, 700))] * 2)), num_parallel_calls=2
    )
    assert _at_work(iter(dataset), 16) == 0.0


def check_what_the_loop_makes_itself_is_not_at_work_beside_it() -> None:
    def load(number: int) -> Any:
        time.sleep(0.02)
        return number

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # TensorFlow would read ahead by itself
    dataset = tf.data.Dataset.range(1000).with_options(options)
    dataset = dataset.map(lambda number: tf.numpy_function(load, [number], tf.int64))
    assert _at_work(iter(dataset), 16) == 0.0
