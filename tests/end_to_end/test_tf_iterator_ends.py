"""Iterators of tf.data that end beside the training, where trials take turns, and in their place elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.in_process import InProcess
from support.tf_here import tf

from tuner.child.adapter import instrument
from tuner.child.patches import unpatch_all
from tuner.child.tensorflow.data import ends
from tuner.child.tensorflow.data.ends import ends_apart
from tuner.child.turns import Turns

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120), pytest.mark.timed]

LATE_S = 0.6


class Trial(InProcess):
    """With TensorFlow's watches; ``by_turns``: others have turns beside it."""

    def __init__(self, *, by_turns: bool) -> None:
        import tensorflow

        from tuner.child.keras.adapter import KerasAdapter

        super().__init__({}, {})
        if by_turns:
            self.session.clock.turns = Turns(self.log, -1)
        instrument(self.session, KerasAdapter(self.session), tensorflow)


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    """Before and after each test nothing is patched."""
    unpatch_all()
    yield
    unpatch_all()


@pytest.fixture
def python_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that call Python, which alone can be made to end late, end as others do."""
    monkeypatch.setattr(ends, "ends_apart", lambda dataset: True)


def late(ended: list[float]) -> Any:
    """Data whose iterators end ``LATE_S`` after they are let go, since a thread of theirs sleeps."""

    def sleep(number: Any) -> Any:
        time.sleep(LATE_S if number else 0.0)
        if number:
            ended.append(time.perf_counter())
        return number

    return tf.data.Dataset.range(100).map(lambda number: tf.numpy_function(sleep, [number], tf.int64)).prefetch(1)


def seconds_to_drop(iterators: list[Any]) -> float:
    """What the script waits for where it lets them go, each a moment after it has given its first element."""
    assert [next(each) for each in iterators]
    time.sleep(LATE_S / 4)
    began = time.perf_counter()
    iterators.clear()
    return time.perf_counter() - began


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.usefixtures("python_too")
@pytest.mark.parametrize("by_turns", [False, True])
def test_an_iterator_that_ends_late_is_waited_for_but_where_trials_take_turns(*, by_turns: bool) -> None:
    Trial(by_turns=by_turns)
    ended: list[float] = []
    took_s = seconds_to_drop([iter(late(ended))])
    assert (took_s < LATE_S / 3) == by_turns, took_s
    time.sleep(2 * LATE_S)
    assert len(ended) == 1, "it has come to its end, and makes nothing more"


@pytest.mark.usefixtures("python_too")
def test_iterators_that_end_late_do_not_pile_up() -> None:
    """Two end, one waits; the others end where they are let go."""
    Trial(by_turns=True)
    assert seconds_to_drop([iter(late([])) for _ in range(5)]) > LATE_S / 3


def test_a_graph_iterates_as_before() -> None:
    Trial(by_turns=True)

    def total(data: Any) -> Any:
        found = tf.constant(0, tf.int64)
        for each in data:
            found += each
        return found + next(iter(data))

    assert int(tf.function(total)(tf.data.Dataset.range(5, 9))) == 31


# Made by the tests: to make one imports TensorFlow.
ALONE = {
    "in memory": lambda data: data.shuffle(8).map(lambda number: number + 1).cache().batch(2).prefetch(1),
    "interleaved": lambda data: data.interleave(tf.data.Dataset.range, cycle_length=2),
}
SHARING = {
    "Python": lambda data, folder: data.map(lambda number: tf.py_function(abs, [number], tf.int64)).batch(2),
    "NumPy, within": lambda data, folder: data.interleave(
        lambda number: tf.data.Dataset.range(2).map(lambda each: tf.numpy_function(abs, [each], tf.int64))
    ),
    "a generator": lambda data, folder: tf.data.Dataset.from_generator(
        lambda: iter([1]), output_signature=tf.TensorSpec([])
    ),
    "a cache's file": lambda data, folder: data.cache(str(folder / "kept")).batch(2),
    "a snapshot": lambda data, folder: data.snapshot(str(folder / "kept")),
}


@pytest.mark.parametrize("kind", ALONE)
def test_data_that_the_next_iteration_shares_nothing_of_may_end_apart(kind: str) -> None:
    assert ends_apart(ALONE[kind](tf.data.Dataset.range(8)))


@pytest.mark.parametrize("kind", SHARING)
def test_data_that_the_next_iteration_shares_more_of_end_in_their_place(kind: str, tmp_path: Path) -> None:
    assert not ends_apart(SHARING[kind](tf.data.Dataset.range(8), tmp_path))


@pytest.mark.slow  # 2 s beside three others
def test_a_cache_whose_passes_are_broken_off_is_filled_as_before(tmp_path: Path) -> None:
    """The next pass finds no lock of the last one: 13 of 80 runs of three passes did."""
    Trial(by_turns=True)
    for number in range(10):
        data = tf.data.Dataset.range(2000).map(lambda each: each + 1).cache(str(tmp_path / str(number))).prefetch(2)
        for _ in range(3):
            iterator = iter(data)
            assert int(next(iterator)) == 1
            del iterator
