"""Samples of a dataset's elements: those of its batches, in whatever dimension, and one where nothing batches."""

# mypy: disable-error-code="untyped-decorator, name-defined, misc"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.tf_here import tf
from support.tf_networks import Net, batches
from support.tf_trials import begin

from tuner.child.tensorflow.data.watch import DatasetWatch
from tuner.child.tensorflow.rows import DISAGREE, MAY_BE_ONE, Rows

__all__ = ["begin"]
pytestmark = pytest.mark.filterwarnings("ignore")
Begin = Callable[..., Any]


def watched(begin: Begin) -> Any:
    """A trial that sees how datasets are made."""
    import tensorflow

    trial = begin()
    datasets = DatasetWatch(trial.session, tensorflow)
    datasets.install()
    trial.loops.iterations.datasets = datasets
    return trial


def images(count: int = 20) -> Any:
    return tf.data.Dataset.from_tensor_slices((tf.zeros([count, 6, 6]), tf.range(count)))


def series(count: int = 20) -> Any:
    """Sequences of five steps and their labels."""
    return tf.data.Dataset.from_tensor_slices((tf.zeros([count, 5, 3]), tf.range(count)))


def time_first(x: Any, y: Any) -> tuple[Any, Any]:
    return tf.transpose(x, [1, 0, 2]), y


def ready() -> Any:
    for _ in range(2):
        yield tf.zeros([7, 3]), tf.zeros([7], tf.int32)


def from_generator(generate: Any, *specs: Any) -> Any:
    signature = tuple(tf.TensorSpec(shape, dtype) for shape, dtype in specs)
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def one_by_one() -> Any:
    for number in range(2):
        yield tf.zeros([7, 3]), number


MADE: dict[str, tuple[Callable[[], Any], list[int], str]] = {
    "single": (lambda: images(3).shuffle(3).repeat(1), [1, 1, 1], ""),
    "single, of words": (lambda: images(3).map(lambda x, y: {"x": x, "y": tf.one_hot(y, 4)}), [1, 1, 1], ""),
    "single, or not": (lambda: images(2).map(lambda x, y: (x, x)), [1, 1], MAY_BE_ONE),
    "batched": (lambda: images(10).batch(4).prefetch(1), [4, 4, 2], ""),
    "padded": (lambda: images(10).padded_batch(4), [4, 4, 2], ""),
    "ragged": (lambda: images(10).map(lambda x, y: x[:y, 0]).ragged_batch(4), [4, 4, 2], ""),
    "twice": (lambda: images(16).batch(4).batch(2), [2, 2], ""),
    "taken apart": (lambda: images(6).batch(3).unbatch().take(2), [1, 1], ""),
    "batched anew": (lambda: images(12).batch(5).unbatch().batch(4), [4, 4, 4], ""),
    "windows": (
        lambda: tf.data.Dataset.range(9).window(3).flat_map(lambda window: window.batch(3)).batch(2), [2, 1], "",
    ),
    "time first": (lambda: series(18).batch(8).map(time_first), [8, 8, 2], ""),
    "time first, alone": (lambda: series(16).batch(8).map(lambda x, y: tf.transpose(x, [1, 0, 2])), [8, 8], ""),
    "two views": (lambda: images(10).batch(4).map(lambda x, y: tf.concat([x, x], 0)), [4, 4, 2], ""),
    "neither": (lambda: images(8).batch(4).map(lambda x, y: tf.zeros([9, 2])), [4, 4], ""),
    "zipped": (lambda: tf.data.Dataset.zip((images(8).batch(4), images(16).batch(8))), [4, 4], ""),
    "numbered": (lambda: images(8).batch(4).enumerate(), [4, 4], ""),
    "one after the other": (lambda: images(8).batch(4).concatenate(images(3).batch(3)), [4, 4, 3], ""),
    "sieved": (lambda: images(8).batch(4).filter(lambda x, y: True), [4, 4], ""),
    "mixed": (
        lambda: tf.data.Dataset.range(2).interleave(lambda _: tf.data.Dataset.from_tensors(tf.zeros([4, 2]))),
        [4, 4], "",
    ),
    "ready": (lambda: tf.data.Dataset.from_tensors((tf.zeros([9, 2]), tf.zeros([9]))).repeat(2), [9, 9], ""),
    "a generator's": (lambda: from_generator(ready, ((None, 3), tf.float32), ((None,), tf.int32)), [7, 7], ""),
    "a generator's, single": (lambda: from_generator(one_by_one, ((7, 3), tf.float32), ((), tf.int32)),
                              [1, 1], DISAGREE),
    "a function's": (lambda: tf.data.Dataset.range(2).map(lambda _: (tf.zeros([4, 4]), tf.zeros([4, 1]))), [4, 4], ""),
}  # fmt: skip


OTHERS = {"padded", "twice", "batched anew", "sieved", "single, of words", "numbered", "ready", "mixed"}
"""They are read by the same rules."""


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[pytest.mark.slow] if how in OTHERS else []) for how in MADE]
)
def test_samples_of_elements(begin: Begin, how: str) -> None:
    make, samples, doubt = MADE[how]
    trial = watched(begin)
    dataset, rows = make(), Rows(tf)
    rows.told(trial.loops.iterations.datasets.batch_sizes(dataset))
    assert [rows.number(element) for element in dataset][: len(samples)] == samples
    assert rows.doubt == doubt

    traced = Rows(tf)
    traced.told(trial.loops.iterations.datasets.batch_sizes(dataset))

    @tf.function
    def count(element: Any) -> Any:
        return tf.cast(traced.of(element), tf.int64)

    counts = [int(count.get_concrete_function(dataset.element_spec)(*tf.nest.flatten(element))) for element in dataset]
    if how != "two views":  # in a graph nobody knows how many rows a sample has
        assert counts[: len(samples)] == samples
    assert traced.doubt == doubt


def test_a_dataset_without_batches_trains_on_one_sample_a_step(begin: Begin) -> None:
    trial = watched(begin)
    net = Net()
    x, y = tf.random.normal([30, 8]), tf.random.uniform([30], 0, 3, tf.int32)
    for one, label in tf.data.Dataset.from_tensor_slices((x, y)).shuffle(30):
        net.step(one[None], label[None])
    facts = trial.end()
    assert (trial.steps, trial.samples, facts["unit"]) == (30, 30, "samples")
    assert "batch_size" not in facts["as_written"]


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "tf.function"])
def test_what_may_be_a_sample_or_a_batch_is_counted_in_steps(begin: Begin, traced: bool) -> None:
    trial = watched(begin)
    weights = tf.Variable(tf.zeros([6, 6]))

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x[None] @ weights - y[None]) ** 2)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    data = images(10).map(lambda x, y: (x, x))
    if traced:

        @tf.function
        def epoch(data: Any) -> None:
            for x, y in data:
                step(x, y)

        epoch(data)
        epoch(data)
    else:
        for x, y in data.repeat(2):
            step(x, y)
    facts = trial.end()
    assert trial.steps in (19, 20)
    assert facts["unit"] == "steps"
    assert f"steps are counted, and not samples: {MAY_BE_ONE}" in facts["remarks"]
    assert "batch_size" not in facts["as_written"]


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "in a graph"])
def test_batches_whose_first_dimension_is_time_are_counted_by_their_samples(begin: Begin, traced: bool) -> None:
    trial = watched(begin)
    weights = tf.Variable(tf.zeros([3, 1]))

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.reduce_sum(x @ weights, 0)[:, 0] - tf.cast(y, tf.float32)) ** 2)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    data = series(20).batch(8).map(time_first)
    if traced:

        @tf.function
        def epoch(data: Any) -> None:
            for x, y in data:
                step(x, y)

        for _ in range(3):
            epoch(data)
    else:
        for x, y in data.repeat(3):
            step(x, y)
    facts = trial.end()
    assert trial.samples == 60
    assert facts["as_written"]["batch_size"] == 8
    assert facts["unit"] == "samples"


def wide(count: int) -> Any:
    """As many features as a batch holds samples."""
    return tf.data.Dataset.from_tensor_slices(tf.zeros([count, 8])).batch(8)


@pytest.mark.parametrize(
    ("make", "samples"),
    [
        (lambda: wide(5), [5]),
        (lambda: wide(13).skip(1).concatenate(wide(16)), [5, 8, 8]),
        (lambda: series(13).batch(8).map(lambda x, y: (tf.zeros([8, tf.shape(x)[0], 3]), y)), [8, 5]),
    ],
    ids=["less than a batch", "a short one first", "as many times as samples"],
)
def test_a_dimension_that_is_as_long_by_chance_is_no_batchs(begin: Begin, make: Any, samples: list[int]) -> None:
    trial = watched(begin)
    weights, data = tf.Variable(tf.zeros([])), make()
    for _ in range(3):
        for element in data:
            with tf.GradientTape() as tape:
                loss = weights * tf.reduce_mean(tf.nest.flatten(element)[0])
            weights.assign_sub(tape.gradient(loss, weights))
    facts = trial.end()
    assert (trial.samples, facts["unit"]) == (3 * sum(samples), "samples")


@pytest.mark.parametrize(("few", "left_out"), [(4, True), (16, False)])
def test_datasets_of_batches_that_differ_in_size_keep_them(begin: Begin, few: int, *, left_out: bool) -> None:
    """One number for both would train on other shares of each."""
    trial = watched(begin)
    net = Net()
    unlabelled = iter(batches(16, 160))
    for x, y in batches(few, 10 * few):
        u, v = next(unlabelled)
        net.step(tf.concat([x, u], 0), tf.concat([y, v], 0))
    facts = trial.end()
    assert facts["unit"] == "samples"
    assert ("batch_size" in facts["left_out"]) is left_out
    if left_out:
        assert facts["left_out"]["batch_size"] == "loaders with batches of 4 and 16 feed the training together"
