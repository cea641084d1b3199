"""What lies ready in a pipeline of tf.data: checks run by tf_data_trials.py."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tuner.child.tensorflow.data.ready import ReadyWatch, read


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
    soon(lambda: (read(tf, iterator).batches, read(tf, iterator).samples), (5, 40))
    watch = ReadyWatch(tf)
    watch.fetches_from(iterator)
    assert watch.samples(8) is None, "what came before it may have had another queue"
    assert watch.was_seen
    assert watch.samples(8) == 5 * 8 + 40
    assert watch.capacity(8) == 10


def check_a_shuffles_buffer_is_no_stock() -> None:
    iterator = iter(tf.data.Dataset.range(1000).shuffle(100).batch(8).prefetch(5))
    next(iterator)
    soon(lambda: read(tf, iterator).batches, 5)
    assert read(tf, iterator).samples == 0


def check_what_lies_below_a_filter_is_left_out() -> None:
    iterator = iter(tf.data.Dataset.range(1000).prefetch(40).filter(lambda x: x % 2 == 0).batch(8).prefetch(5))
    next(iterator)
    soon(lambda: read(tf, iterator).batches, 5)
    assert read(tf, iterator).samples == 0


def check_the_rest_of_an_epoch_is_no_stock() -> None:
    known, unknown = tf.data.Dataset.range(80), tf.data.Dataset.range(80).filter(lambda x: x < 80)
    for dataset in (known, unknown):
        iterator = iter(dataset.batch(8).prefetch(20))
        next(iterator)
        soon(lambda looked=iterator: read(tf, looked).batches, 9)
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
        soon(lambda: read(tf, iterator).batches, int(number < 10))
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
            soon(lambda: read(tf, iterator).batches, 5)
            told.append(watch.samples(8))
        return told

    assert looks() == [None, *[40.0] * 6], "a slow first step lets a queue fill that the loop may live on"
    assert looks() == [None] * 4 + [40.0] * 3


def check_data_without_an_end_may_stand_still() -> None:
    iterator = iter(tf.data.Dataset.range(80).repeat().batch(8).prefetch(20))
    next(iterator)
    soon(lambda: read(tf, iterator).batches, 20)
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
