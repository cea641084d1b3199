"""Which calls may give their results in another order, what a dataset made again draws: run by tf_data_trials.py."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from support.tf_data_trials import Trial, after, numbers, values
from support.tf_plan_checks import REFUSED, noise, plus_one, written
from tuner.child.tensorflow.data.caches import made_of

AUTO = tf.data.AUTOTUNE


def mapped(count: int = 100) -> Any:
    """A parallel map over numbers."""
    return numbers(count).map(plus_one, num_parallel_calls=AUTO)


def freed(dataset: Any) -> list[bool]:
    """Of each parallel map of the dataset as adapted, from the last one down, whether it keeps no order."""
    adapted = Trial(deterministic=False).watch.adapt(dataset, batched=True)
    kinds = [getattr(made, "_deterministic", "") for made in made_of(adapted)]
    assert adapted.options().deterministic is not False, "the option would reach calls that have to keep their order"
    return [kind == "false" for kind in kinds if kind]


def why_kept(dataset: Any) -> str:
    """Why the order has to be kept; the dataset stays the very same."""
    assert Trial(deterministic=False).watch.adapt(dataset, batched=True) is dataset
    return str(written(dataset, "deterministic"))


def check_below_a_zip_the_order_is_kept() -> None:
    pairs = tf.data.Dataset.zip((mapped(), mapped()))
    assert why_kept(pairs.shuffle(100).batch(4)).startswith("zip pairs elements by their order")
    shuffled = tf.data.Dataset.zip((mapped().shuffle(9, seed=1), mapped().shuffle(9, seed=1)))
    assert why_kept(shuffled.batch(4)).startswith("zip pairs")


def check_above_a_zip_the_calls_are_freed() -> None:
    pairs = tf.data.Dataset.zip((mapped(), mapped())).shuffle(100)
    dataset = pairs.map(lambda x, y: (x, y), num_parallel_calls=AUTO).batch(4)
    assert freed(dataset) == [True, False, False]
    assert written(dataset, "deterministic") is True


def check_a_split_by_position_keeps_its_order() -> None:
    """What comes out of order above a skip trains on what is taken to validate."""
    cuts: list[Callable[[Any], Any]] = [lambda d: d.skip(20), lambda d: d.take(80), lambda d: d.shard(2, 0)]
    for cut in cuts:
        assert "others would be trained on" in why_kept(cut(mapped().shuffle(100, seed=1)).batch(4))
        assert "others would be trained on" in why_kept(cut(numbers().shuffle(100, seed=1).map(noise, AUTO)).batch(4))
        below = cut(numbers()).shuffle(100).map(plus_one, num_parallel_calls=AUTO).batch(4)
        assert freed(below) == [True]


def check_a_split_by_position_stays_one_without_a_seed() -> None:
    """Tried before: made again the part that trains was shuffled by another seed, and held what validates."""
    context = sys.modules["tensorflow.python.eager.context"].context()
    seed, context._seed = context._seed, None  # as in a script that sets none
    try:
        shuffled = [numbers().map(plus_one).shuffle(100, reshuffle_each_iteration=False) for _ in range(2)]
        trains, validates = shuffled[0].skip(20).batch(10), shuffled[0].take(20).batch(10)
        adapted = Trial(parallel_calls=4).watch.adapt(trains, batched=True)
        assert adapted is not trains
        assert sorted([*values(adapted), *values(validates)]) == sorted(values(numbers().map(plus_one)))
        assert values(shuffled[0]) == values(shuffled[0]) != values(shuffled[1])
    finally:
        context._seed = seed


def check_data_that_are_not_shuffled_keep_their_order() -> None:
    assert why_kept(mapped().batch(4)) == "the script doesn't shuffle these data: their order may matter"
    assert why_kept(mapped().shuffle(1).batch(4)).startswith("the script doesn't shuffle")
    texts = mapped().batch(11).shuffle(9).batch(4)  # what lies side by side is a sequence
    assert why_kept(texts).startswith("the script doesn't shuffle")
    assert freed(mapped().shuffle(100).batch(4)) == [True]
    assert freed(numbers().shuffle(100).map(plus_one, num_parallel_calls=2).batch(4)) == [True]


def check_what_goes_by_the_order_keeps_it() -> None:
    shuffled = mapped().shuffle(100)
    ordered: dict[str, Callable[[Any], Any]] = {
        "windows": lambda d: d.window(4).flat_map(lambda w: w.batch(4)),
        "enumerate": lambda d: d.enumerate(),
        "scan": lambda d: d.scan(np.int64(0), lambda s, x: (s + x, s + x)),
        "take_while": lambda d: d.take_while(lambda x: x < 90),
        "snapshot": lambda d: d.snapshot(tempfile.mkdtemp()),
    }
    for word, make in ordered.items():
        assert word in why_kept(make(shuffled).batch(4)), word
    assert "holds AssignAddVariableOp" in why_kept(shuffled.map(counting()).batch(4))


def counting() -> Callable[[Any], Any]:
    """A map whose results depend on how often it ran."""
    counter = tf.Variable(0, dtype=tf.int64)
    return lambda x: x + counter.assign_add(1)


def check_each_way_to_a_call_counts() -> None:
    base = mapped().shuffle(9, seed=1)
    both = base.concatenate(tf.data.Dataset.zip((base, base)).map(lambda x, y: x))
    assert sorted(freed(both.shuffle(200).batch(4))) == [False, True], "the map above the zip alone"


def check_deterministic_operations_keep_the_order() -> None:
    dataset = mapped().shuffle(9, seed=1).batch(4)
    tf.config.experimental.enable_op_determinism()
    try:
        assert "deterministic operations" in why_kept(dataset)
    finally:
        sys.modules["tensorflow.python.framework.config"].disable_op_determinism()


def check_an_order_that_the_script_gave_up_is_restored() -> None:
    def sloppy() -> Any:
        options = tf.data.Options()
        options.deterministic = False
        return mapped().shuffle(9).batch(4).with_options(options)

    assert written(sloppy(), "deterministic") is False
    trial = after(sloppy, deterministic=True)
    assert trial.evidence("deterministic") == ("verified", "")
    argument = numbers().shuffle(9).map(plus_one, num_parallel_calls=2, deterministic=False).batch(4)
    assert written(argument, "deterministic") is False


def check_windows_of_an_array_keep_their_targets() -> None:
    from keras.utils import timeseries_dataset_from_array

    rows = np.arange(400)
    dataset = timeseries_dataset_from_array(rows, rows[5:], 5, batch_size=8, shuffle=True, seed=1)
    assert why_kept(dataset).startswith(("zip pairs", "the script doesn't"))


def check_images_of_a_directory_keep_their_classes() -> None:
    from keras.utils import image_dataset_from_directory, save_img

    folder = tempfile.mkdtemp()
    for index in range(24):
        path = Path(folder) / f"class{index % 3}" / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        save_img(path, np.full((8, 8, 3), index), scale=False)
    for labels in ("int", "categorical"):
        dataset: Any = image_dataset_from_directory(
            folder, image_size=(8, 8), batch_size=4, label_mode=labels, shuffle=True, seed=1, verbose=False
        )
        adapted: Any = Trial(deterministic=False).watch.adapt(dataset, batched=True)
        kinds = [kind for made in made_of(adapted) if (kind := getattr(made, "_deterministic", ""))]
        assert kinds[0] == "false" and kinds.count("false") == 1, kinds  # the map that reads the pictures
        for _ in range(3):
            for pictures, classes in adapted:
                told = classes.numpy() if labels == "int" else np.argmax(classes, axis=1)
                assert [int(x) % 3 for x in pictures.numpy()[:, 0, 0, 0]] == list(told)


# parallel calls


def check_more_calls_do_not_give_up_the_order() -> None:
    """An option that did nothing as long as there was one call must not pair inputs with other labels now."""
    options = tf.data.Options()
    options.deterministic = False
    noisy = numbers(50).map(lambda x: x + tf.random.uniform([], 0, 1, tf.int64))
    pairs = tf.data.Dataset.zip((noisy, numbers(50))).batch(5).with_options(options)
    adapted = Trial(parallel_calls=4).watch.adapt(pairs, batched=True)
    kinds = [kind for made in made_of(adapted) if (kind := getattr(made, "_deterministic", ""))]
    assert kinds == ["true"]


def check_functions_that_call_python_run_one_by_one() -> None:
    """A file that is shared is read from two places at once."""
    import keras

    def python(x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.int64), [])

    assert "calls Python" in written(numbers().map(python).batch(4), "parallel_calls")
    assert written(numbers().map(python, num_parallel_calls=2).batch(4), "parallel_calls") == 2
    assert "one call may depend on the one before" in written(numbers().map(counting()).batch(4), "parallel_calls")
    layer = keras.layers.RandomFlip("horizontal", seed=1)  # its seed lies in a variable, and is all that lasts
    pictures = numbers().map(lambda x: layer(tf.fill([4, 4, 1], tf.cast(x, tf.float32)), training=True))
    assert written(pictures.batch(4), "parallel_calls") == "none"
    shards = numbers(9).interleave(lambda x: tf.data.Dataset.range(x).shuffle(9), cycle_length=3)
    assert written(shards.batch(4), "parallel_calls") == "none"
    both = numbers().map(python).map(noise).batch(4)
    adapted = Trial(parallel_calls=2).watch.adapt(both, batched=True)
    kinds = [type(made).__name__ for made in made_of(adapted)]
    assert [kind for kind in kinds if "Map" in kind] == ["_ParallelMapDataset", "_MapDataset"]


def check_an_interleave_reads_in_the_same_order() -> None:
    def rows(x: Any) -> Any:
        return tf.data.Dataset.range(x * 100, x * 100 + 3 + x % 4)

    for options in ({}, {"cycle_length": 3}, {"cycle_length": 3, "block_length": 2}):

        def make(options: Any = options) -> Any:
            return numbers(12).interleave(rows, **options).batch(4)

        assert written(make(), "parallel_calls") == "none"
        for calls in (2, "auto"):
            adapted = Trial(parallel_calls=calls).watch.adapt(make(), batched=True)
            assert any("Parallel" in type(made).__name__ for made in made_of(adapted))
            assert values(adapted) == values(make()), (options, calls)
    already = numbers(12).interleave(rows, num_parallel_calls=AUTO).batch(4)
    assert "decides in which order" in written(already, "parallel_calls")


def check_files_that_are_read_at_once_come_in_another_order() -> None:
    """Why num_parallel_reads is no knob: only blocks as long as the files keep the order, which lie in memory whole."""
    folder = Path(tempfile.mkdtemp())
    files = [str(folder / f"{number}.tfrecord") for number in range(4)]
    for number, file in enumerate(files):
        with tf.io.TFRecordWriter(file) as writer:
            for record in range(3 + number):
                writer.write(b"%d of %d" % (record, number))

    def read(**how: Any) -> list[bytes]:
        return [bytes(record) for record in tf.data.TFRecordDataset(files, **how).as_numpy_iterator()]

    one_by_one = read()
    for parallel in (2, 4):
        assert read(num_parallel_reads=parallel) != one_by_one
        assert sorted(read(num_parallel_reads=parallel)) == sorted(one_by_one)

    def in_blocks(length: int) -> list[bytes]:
        names = tf.data.Dataset.from_tensor_slices(files)
        dataset = names.interleave(
            tf.data.TFRecordDataset, cycle_length=2, block_length=length, num_parallel_calls=2, deterministic=True
        )
        return [bytes(record) for record in dataset.as_numpy_iterator()]

    assert in_blocks(1) != one_by_one == in_blocks(6)


# cache, vectorized maps, seeds


def records(folder: Path, files: int = 6, each: int = 5) -> str:
    """A pattern of files with records that tell their file."""
    for index in range(files):
        with tf.io.TFRecordWriter(str(folder / f"{index}.tfrecord")) as writer:
            for row in range(each):
                writer.write(f"{index}.{row}".encode())
    return str(folder / "*.tfrecord")


def check_a_cache_does_not_freeze_the_order_of_the_files_of_a_reader() -> None:
    pattern = records(Path(tempfile.mkdtemp()))

    def make(*, shuffle: bool, parallel: int | None = None) -> Any:
        files = tf.data.Dataset.list_files(pattern, shuffle=shuffle)
        rows = tf.data.TFRecordDataset(files, num_parallel_reads=parallel)
        counted = rows.apply(tf.data.experimental.assert_cardinality(30))
        return counted.map(tf.strings.length).batch(5)

    for parallel in (None, 2, AUTO):
        assert written(make(shuffle=True, parallel=parallel), "cache") == "the order of the files is shuffled anew"
        assert written(make(shuffle=False, parallel=parallel), "cache") is False
    lines = tf.data.TextLineDataset(tf.data.Dataset.list_files(pattern)).take(4).map(tf.strings.length).batch(2)
    assert written(lines, "cache") == "the order of the files is shuffled anew"


def check_a_look_at_the_elements_takes_none_from_the_training() -> None:
    given = iter(range(40))

    def make() -> Any:
        return tf.data.Dataset.from_generator(lambda: given, output_signature=tf.TensorSpec((), tf.int64))

    dataset = make().map(plus_one).batch(10)
    assert "a Python generator makes the data" in written(dataset, "vectorized_map")
    adapted = Trial(vectorized_map=True).watch.adapt(dataset, batched=True)
    assert values(adapted) == [x + 1 for x in range(40)]


def check_a_look_at_the_elements_shuffles_nothing() -> None:
    def make() -> Any:
        tf.random.set_seed(3)
        return numbers(40).map(plus_one).cache().shuffle(40, reshuffle_each_iteration=True).map(plus_one).batch(10)

    plain = make()
    expected = [values(plain) for _ in range(2)]
    adapted = Trial(vectorized_map=True).watch.adapt(make(), batched=True)
    assert [values(adapted) for _ in range(2)] == expected
    trial = after(make, vectorized_map=True)
    assert trial.evidence("vectorized_map") == ("verified", "")


def check_a_look_at_the_elements_calls_no_python() -> None:
    def python(x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.int64), [])

    assert "calls Python" in written(numbers().map(python).map(plus_one).batch(10), "vectorized_map")
    evidence = after(lambda: numbers().map(python).map(plus_one).batch(10), vectorized_map=True)
    assert evidence.evidence("vectorized_map")[0] == REFUSED


def check_a_dataset_made_again_draws_what_it_drew() -> None:
    def make() -> Any:
        tf.random.set_seed(5)
        mixed = tf.data.Dataset.sample_from_datasets([numbers(40), numbers(40).map(lambda x: x + 100)])
        uneven = mixed.map(lambda x: x + tf.random.uniform([], 0, 5, tf.int64)).shuffle(20)
        return tf.data.Dataset.concatenate(uneven, tf.data.Dataset.random(rerandomize_each_iteration=False).take(4))

    plain, later = values(make().batch(4)), tf.random.uniform([]).numpy()
    adapted = Trial(prefetch=3, batch_size=8).watch.adapt(make().batch(4), batched=True)
    assert tf.random.uniform([]).numpy() == later, "a dataset made again takes no random number from the script"
    assert values(adapted) == plain
