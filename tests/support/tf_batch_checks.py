"""Another batch size: checks that test_tf_data.py has run by tf_data_trials.py."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from support.tf_data_trials import Trial, numbers, sizes, values


def resized(dataset_of: Callable[[], Any], size: int, *, batched: bool = True) -> tuple[Any, Trial]:
    """The dataset adapted to a batch size."""
    trial = Trial(batch_size=size)
    dataset = dataset_of()
    trial.watch.meet(dataset, batched=batched)
    return trial.watch.adapt(dataset, batched=batched), trial


def check_the_last_batcher_is_changed_and_every_sample_stays() -> None:
    made, trial = resized(lambda: numbers().map(lambda x: x + 1).batch(8).prefetch(2), 32)
    assert sizes(made) == [32, 32, 32, 4]
    assert values(made) == list(range(1, 101))
    assert trial.session.facts.as_written["batch_size"] == 8
    assert trial.evidence("batch_size") == ("unverifiable", "no batch was counted")


def check_drop_remainder_is_kept() -> None:
    made, _ = resized(lambda: numbers().batch(8, drop_remainder=True), 32)
    assert sizes(made) == [32, 32, 32]
    assert made.element_spec.shape == (32,)


def check_a_pass_keeps_its_samples_where_its_last_batch_is_left_out() -> None:
    """Tried before: of 100 samples 60 were trained on, where the script's batches hold 96 of them."""
    made, trial = resized(lambda: numbers().shuffle(100).batch(8, drop_remainder=True), 60)
    assert sizes(made) == [8] * 12
    told = "of 100 samples 96 are in whole batches of 8, and 60 in those of 60: the script leaves out the rest"
    assert trial.evidence("batch_size") == ("not applicable", told) and trial.is_of_value("batch_size")
    made, _ = resized(lambda: numbers().repeat().batch(8, drop_remainder=True), 60)
    assert sizes(made.take(3)) == [60] * 3


def check_batches_of_another_size_than_the_config_is_for_stay() -> None:
    """Tried before: a later stage's batches of 25 became ones of 16, which was to make those of 8 larger."""
    trial = Trial({"as_written": {"batch_size": 8}}, batch_size=16)
    told = "its batches have 25 samples, and the config is for those of 8"
    for _ in range(2):
        assert sizes(trial.watch.adapt(numbers().batch(8))) == [16] * 6 + [4]
    assert sizes(trial.watch.adapt(numbers().batch(25).prefetch(1))) == [25] * 4
    assert sizes(trial.watch.adapt(numbers().batch(25).prefetch(1), batched=True)) == [25] * 4
    assert trial.watch.refused("batch_size") == told


def check_a_batch_that_is_taken_apart_again_is_not_the_one() -> None:
    made, trial = resized(lambda: numbers().batch(50).map(lambda x: x * 2).unbatch().batch(5), 20)
    assert sizes(made) == [20] * 5
    assert values(made) == [2 * x for x in range(100)]
    assert trial.session.facts.as_written["batch_size"] == 5


def check_padded_and_ragged_batches() -> None:
    def rows() -> Any:
        return numbers(20).map(lambda x: tf.range(x % 4 + 1))

    padded, _ = resized(lambda: rows().padded_batch(4, padded_shapes=[None]), 10)
    assert sizes(padded) == [10, 10]
    ragged, _ = resized(lambda: rows().ragged_batch(4), 10)
    assert [int(batch.nrows()) for batch in ragged] == [10, 10]


def check_what_map_and_batch_makes() -> None:
    fused = tf.data.experimental.map_and_batch(lambda x: x + 1, 4)
    made, trial = resized(lambda: numbers(20).apply(fused), 10)
    assert sizes(made) == [10, 10]
    assert trial.session.facts.as_written["batch_size"] == 4


def check_branches_that_are_zipped() -> None:
    def pairs() -> Any:
        x, y = numbers(20).batch(4), numbers(20).map(lambda x: -x).batch(4)
        return tf.data.Dataset.zip((x, {"y": y}))

    made, trial = resized(pairs, 10)
    assert [(x.shape[0], y["y"].shape[0]) for x, y in made] == [(10, 10), (10, 10)]
    assert all((x.numpy() == -y["y"].numpy()).all() for x, y in made)
    assert trial.session.facts.as_written["batch_size"] == 4


def check_a_zipped_counter_counts_on() -> None:
    def seeded() -> Any:
        return tf.data.Dataset.zip((numbers(20).batch(4), tf.data.Dataset.counter()))

    made, _ = resized(seeded, 10)
    assert [(x.shape[0], int(i)) for x, i in made] == [(10, 0), (10, 1)]


def check_branches_of_different_sizes_are_refused() -> None:
    def pairs() -> Any:
        return tf.data.Dataset.zip((numbers(20).batch(4), numbers(40).batch(8)))

    made, trial = resized(pairs, 10)
    assert trial.session.facts.left_out["batch_size"] != ""
    assert [(x.shape[0], y.shape[0]) for x, y in made] == [(4, 8)] * 5
    assert trial.evidence("batch_size")[0] == "not applicable"


def check_concatenated_and_sampled_datasets() -> None:
    made, _ = resized(lambda: numbers(20).batch(4).concatenate(numbers(10).batch(4)), 10)
    assert sizes(made) == [10, 10, 10]
    made, _ = resized(
        lambda: tf.data.Dataset.sample_from_datasets([numbers(20).batch(4), numbers(20).batch(4)], [0.5, 0.5]), 10
    )
    assert sizes(made) == [10] * 4


def check_take_and_skip_of_batches_count_the_same_samples() -> None:
    made, _ = resized(lambda: numbers().batch(4).skip(4).take(8), 8)
    assert values(made) == list(range(16, 48))
    assert sizes(made) == [8] * 4


def check_a_take_that_does_not_divide_has_its_batches_cut() -> None:
    made, trial = resized(lambda: numbers().batch(4).take(5), 8)
    assert values(made) == list(range(20))
    assert sizes(made) == [8, 8, 4]
    assert trial.watch.factor(made) == 2.0


def check_take_before_the_batch_counts_samples() -> None:
    made, _ = resized(lambda: numbers().take(50).batch(4), 25)
    assert sizes(made) == [25, 25]


def check_a_shuffle_of_batches_holds_the_same_samples() -> None:
    made, _ = resized(lambda: numbers().batch(4).shuffle(10), 8)
    assert sorted(values(made)) == list(range(100))
    assert int(made._buffer_size) == 5


def check_the_steps_are_scaled() -> None:
    dataset = numbers().batch(4)
    trial = Trial(batch_size=16)
    made = trial.watch.adapt(dataset)
    assert (trial.watch.factor(dataset), trial.watch.factor(made)) == (4.0, 4.0)
    assert (trial.watch.batch_size(dataset), trial.watch.batch_size(made)) == (4, 4)
    assert Trial(prefetch=2).watch.factor(numbers().batch(4)) == 1.0


def check_a_generators_batches_are_cut_anew() -> None:
    def made_by_python() -> Any:
        def batches() -> Any:
            for start in range(0, 48, 4):
                yield np.arange(start, start + 4), np.zeros((4, 2), np.float32)

        signature = (tf.TensorSpec((None,), tf.int64), tf.TensorSpec((None, 2), tf.float32))
        return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(1)

    made, trial = resized(made_by_python, 16)
    assert sizes(made) == [16] * 3
    assert values(made) == list(range(48))
    assert "batch_size" not in trial.session.facts.left_out
    # A loop of the script's own may be fed by samples, too: there it can't be told.
    plain, trial = resized(made_by_python, 16, batched=False)
    assert sizes(plain) == [4] * 12
    assert trial.session.facts.left_out["batch_size"] == "a Python generator makes the batches"
    assert trial.evidence("batch_size") == ("not applicable", "a Python generator makes the batches")


def check_what_a_generator_gives_is_counted_for_the_baseline() -> None:
    def batches() -> Any:
        for _ in range(3):
            yield np.zeros(6, np.float32)

    trial = Trial()
    trial.train(tf.data.Dataset.from_generator(batches, tf.float32), batches=0)
    knowledge = trial.knowledge()
    assert knowledge["as_written"]["batch_size"] == 6
    later = Trial(knowledge, batch_size=9)
    dataset = tf.data.Dataset.from_generator(batches, tf.float32)
    assert len(later.train(dataset, batches=0)) == 2
    assert later.watch.factor(dataset) == 1.5
    assert later.evidence("batch_size") == ("verified", "")


def check_variable_shapes_are_not_cut() -> None:
    def rows() -> Any:
        yield np.zeros((2, 3), np.float32)

    dataset = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((None, None), tf.float32))
    _, trial = resized(lambda: dataset, 8)
    assert trial.session.facts.left_out["batch_size"] == "the batches differ in more than their number of samples"


def check_files_read_by_an_interleave() -> None:
    folder = Path(tempfile.mkdtemp())
    for index in range(3):
        (folder / f"{index}.txt").write_text("\n".join(f"{index}{line}" for line in range(10)))

    def lines() -> Any:
        files = tf.data.Dataset.list_files(str(folder / "*.txt"), shuffle=False)
        return files.interleave(tf.data.TextLineDataset, cycle_length=2).batch(5)

    plain = [bytes(x) for batch in lines() for x in batch.numpy()]
    trial = Trial(batch_size=15, parallel_calls=8)
    made: Any = trial.watch.adapt(lines())
    assert sizes(made) == [15, 15]
    assert [bytes(x) for batch in made for x in batch.numpy()] == plain
    assert trial.watch.applied["parallel_calls"].changed == 1  # at most as many calls as files are open at a time


def check_a_function_that_counts_on_its_batch_size_is_refused() -> None:
    def cut() -> Any:
        return numbers(64).batch(8).map(lambda x: tf.reshape(x, (8, 1)))

    made, trial = resized(cut, 16)
    assert sizes(made) == [8] * 8
    reason = "the shapes that the dataset's functions make don't follow the batch size"
    assert trial.evidence("batch_size") == ("not applicable", reason)

    def broken() -> Any:
        return numbers(64).batch(8, drop_remainder=True).map(lambda x: x + tf.range(8, dtype=tf.int64))

    made, trial = resized(broken, 16)
    assert sizes(made) == [8] * 8
    assert trial.evidence("batch_size")[0] == "not applicable"


def check_an_infinite_dataset_stays_infinite() -> None:
    made, _ = resized(lambda: numbers(10).repeat().batch(4), 25)
    assert values(made.take(2)) == [x % 10 for x in range(50)]


def check_batches_kept_in_a_file_are_left_alone() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made, trial = resized(lambda: numbers(20).batch(4).cache(f"{folder}/kept"), 10, batched=False)
        assert sizes(made) == [4] * 5
        assert trial.session.facts.left_out["batch_size"] == "the batches are kept in files"


def check_an_asserted_number_of_batches_is_dropped_one_of_samples_kept() -> None:
    known = tf.data.experimental.assert_cardinality
    made, _ = resized(lambda: numbers(20).batch(4).apply(known(5)), 10)
    assert sizes(made) == [10, 10]
    made, _ = resized(lambda: numbers(20).filter(lambda x: True).apply(known(20)).batch(4), 10)
    assert (sizes(made), int(made.cardinality())) == ([10, 10], 2)
