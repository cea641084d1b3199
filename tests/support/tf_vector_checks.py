"""Maps of single elements, moved behind their batch: checks run by tf_data_trials.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from support.tf_data_trials import Trial, after, numbers, values
from support.tf_plan_checks import Counted, noise, plus_one

REFUSED = "not applicable"


def images(count: int = 5000) -> Any:
    """Small pictures with their labels."""
    chance = np.random.default_rng(0)
    return tf.data.Dataset.from_tensor_slices(
        (chance.integers(0, 255, (count, 4, 4), dtype=np.uint8), chance.integers(0, 10, count))
    )


def prepared(image: Any, label: Any) -> tuple[Any, Any]:
    """What scripts do to a picture; only autograph makes a graph of the branch."""
    scaled = tf.cast(image, tf.float32) / 255.0
    if tf.reduce_mean(scaled) > 0.5:
        scaled = tf.image.flip_left_right(scaled[..., None])[..., 0]
    return scaled - tf.reduce_mean(scaled), tf.one_hot(label, 10)


def left_out(dataset: Any) -> str:
    """Why the knob isn't offered; "" where it is."""
    trial = Trial()
    trial.watch.meet(dataset, batched=True)
    if "vectorized_map" not in trial.session.facts.left_out:
        assert trial.session.facts.as_written["vectorized_map"] is False
    return trial.session.facts.left_out.get("vectorized_map", "")


def check_a_moved_map_gives_the_same_batches_and_the_plan_shows_it() -> None:
    def make() -> Any:
        return images().map(prepared).shuffle(100, seed=3).batch(32).prefetch(1)

    assert left_out(make()) == ""
    as_written = [x for batch in make() for x in batch]
    trial = after(make, vectorized_map=True)
    assert trial.evidence("vectorized_map") == ("verified", "")
    adapted: Any = trial.watch.adapt(make(), batched=True)
    assert adapted.element_spec == make().element_spec
    found = [x for batch in adapted for x in batch]
    assert len(found) == len(as_written)
    for one, other in zip(as_written, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def check_a_map_that_takes_a_mapping_of_columns_is_moved() -> None:
    def make() -> Any:
        return numbers(64).map(lambda x: {"a": x, "b": [x, x]}).map(lambda row: (row["a"] + 1, row["b"])).batch(16)

    trial = after(make, vectorized_map=True)
    assert trial.evidence("vectorized_map") == ("verified", "")
    assert values(trial.watch.adapt(make(), batched=True)) == list(range(1, 65))


def check_it_goes_with_another_batch_size_and_with_parallel_calls() -> None:
    trial = after(lambda: numbers().map(plus_one).batch(10), vectorized_map=True, batch_size=20, parallel_calls=2)
    assert trial.evidence("vectorized_map") == ("verified", "")
    assert trial.evidence("batch_size") == ("verified", "")
    assert trial.evidence("parallel_calls") == ("verified", "")


def check_behind_a_cache_of_its_results_nothing_is_left_to_move() -> None:
    trial = after(
        lambda: images().map(prepared).shuffle(100, seed=3).batch(10), vectorized_map=True, cache=True, epochs=2
    )
    assert trial.evidence("cache")[0] == "verified"
    assert trial.evidence("vectorized_map")[0] == REFUSED


def check_a_cache_of_batches_keeps_what_was_made_of_many() -> None:
    trial = after(lambda: images().map(prepared).batch(10), vectorized_map=True, cache=True, epochs=2)
    assert trial.evidence("cache")[0] == "verified"
    assert trial.evidence("vectorized_map") == ("verified", "")


def check_random_maps_stay_where_they_are() -> None:
    assert "random" in left_out(numbers().map(noise).batch(10)).lower()


def check_maps_that_call_python_stay_where_they_are() -> None:
    assert left_out(numbers().map(Counted()).batch(10)) == "the map calls Python"


def check_maps_of_uneven_elements_stay_where_they_are() -> None:
    uneven = numbers().map(tf.range).map(tf.reduce_sum)
    assert left_out(uneven.batch(10)) == "the elements of the map differ in shape"


def check_only_the_maps_above_one_that_cannot_be_moved_are() -> None:
    def make() -> Any:
        return numbers().map(Counted()).map(plus_one).batch(10)

    trial = after(make, vectorized_map=True)
    assert trial.evidence("vectorized_map") == ("verified", "")
    assert values(trial.watch.adapt(make(), batched=True)) == [x + 1001 for x in range(100)]


def check_without_a_map_there_is_nothing_to_move() -> None:
    assert "no map of single elements" in left_out(numbers().batch(10))
    assert "no map of single elements" in left_out(numbers().batch(10).map(plus_one))


def check_what_tensorflow_has_no_form_of_is_refused_by_its_name() -> None:
    def make() -> Any:
        return numbers().map(lambda x: tf.strings.to_number(tf.strings.as_string(x))).batch(10)

    assert left_out(make()) == ""
    evidence, reason = after(make, vectorized_map=True).evidence("vectorized_map")
    assert (evidence, "AsString" in reason) == (REFUSED, True), reason


def check_a_map_whose_batched_form_differs_is_refused() -> None:
    def make() -> Any:
        # For each element the seed is the element; of the batched form nobody has said what it draws.
        return numbers().map(lambda x: tf.random.stateless_uniform([2], [x, x])).batch(10)

    trial = after(make, vectorized_map=True)
    evidence, _ = trial.evidence("vectorized_map")
    same = np.array_equal(np.concatenate(list(trial.watch.adapt(make(), batched=True))), np.concatenate(list(make())))
    assert same, evidence
