"""Parallel calls, prefetch, cache and options, and what TensorFlow makes of them: checks run by tf_data_trials.py."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from support.tf_data_trials import Trial, after, numbers, sizes, values
from tuner.child.patches import unpatch_all
from tuner.child.tensorflow.data.filling import FILLS, LONGEST_FILL_S, STILL_FILLING
from tuner.child.tensorflow.data.plans import SAME_PLAN

AUTO = tf.data.AUTOTUNE
REFUSED = "not applicable"


def noise(x: Any) -> Any:
    """A stateful map: TensorFlow doesn't make it parallel by itself."""
    return tf.cast(x, tf.float32) + tf.random.uniform([], 0.0, 0.5)


def plus_one(x: Any) -> Any:
    """A stateless map."""
    return x + 1


class Counted:
    """A map that counts how often it runs; TensorFlow takes it for what it is said to be."""

    def __init__(self, *, stateful: bool = False) -> None:
        self.stateful = stateful
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        def run(value: Any) -> Any:
            self.calls += 1
            return value + np.int64(1000)

        made = tf.numpy_function(run, [x], tf.int64, stateful=self.stateful)
        return tf.ensure_shape(made, [])


def written(dataset: Any, knob: str) -> Any:
    """What the script wrote, or why the knob is left out."""
    trial = Trial()
    trial.watch.meet(dataset, batched=True)
    return trial.session.facts.left_out.get(knob) or trial.session.facts.as_written[knob]


# recording


def check_recording_changes_nothing_for_the_script() -> None:
    unpatch_all()
    before = {name: inspect.signature(getattr(tf.data.Dataset, name)) for name in ("map", "batch", "zip")}
    originals = {name: tf.data.Dataset.__dict__[name] for name in before}
    Trial()
    for name, signature in before.items():
        assert getattr(tf.data.Dataset, name).__name__ == name
        assert inspect.signature(getattr(tf.data.Dataset, name)) == signature
        assert tf.data.Dataset.__dict__[name] is not originals[name]
    unpatch_all()
    assert {name: tf.data.Dataset.__dict__[name] for name in before} == originals


def check_autograph_goes_on_as_before() -> None:
    Trial()

    def branch(x: Any) -> Any:
        if x % 2 == 0:  # only autograph makes a graph of this
            x = -x
        return x

    assert values(numbers(4).map(branch)) == [0, 1, -2, 3]

    @tf.function
    def total() -> Any:
        result = tf.constant(0, tf.int64)
        for batch in tf.data.Dataset.range(10).map(branch).batch(3):
            result += tf.reduce_sum(batch)
        return result

    assert int(total()) == 5


def check_datasets_of_a_graph_are_not_recorded() -> None:
    trial = Trial()
    inner: list[Any] = []

    def rows(x: Any) -> Any:
        inner.append(tf.data.Dataset.range(x).map(plus_one))
        return inner[-1]

    numbers(3).flat_map(rows)
    assert trial.watch.book.record(inner[-1]).recipe is None


def check_nothing_to_change_gives_the_same_object() -> None:
    dataset = numbers().map(plus_one, num_parallel_calls=AUTO).batch(8).prefetch(AUTO)
    assert Trial().watch.adapt(dataset) is dataset
    same = Trial(batch_size=8, prefetch="auto", parallel_calls="auto", deterministic=True, private_threads=0)
    assert same.watch.adapt(dataset) is dataset
    arrays: Any = np.zeros(3)
    assert same.watch.adapt(arrays) is arrays


def check_handed_over_knobs_are_left_to_others() -> None:
    trial = Trial(batch_size=16)
    trial.session.knobs.delegate("batch_size")
    dataset = numbers().batch(8)
    assert trial.watch.adapt(dataset) is dataset


def check_what_the_script_also_evaluates_stays() -> None:
    dataset = numbers().map(plus_one).batch(8)
    trial = Trial(batch_size=50, cache=True, prefetch=4)
    assert sizes(trial.watch.adapt(dataset)) == [50, 50]
    assert sizes(dataset) == [8] * 12 + [4]


def check_attributes_that_keras_leaves_are_kept() -> None:
    dataset = numbers().batch(8)
    dataset.class_names = ["a", "b"]
    assert vars(Trial(batch_size=4).watch.adapt(dataset))["class_names"] == ["a", "b"]


# parallel calls, prefetch


def check_what_the_script_wrote() -> None:
    assert written(numbers().map(plus_one).batch(4), "parallel_calls") == "none"
    assert written(numbers().map(plus_one, num_parallel_calls=AUTO).batch(4), "parallel_calls") == "auto"
    assert written(numbers().map(plus_one, num_parallel_calls=3).batch(4), "parallel_calls") == 3
    twice = numbers().map(plus_one, num_parallel_calls=3).map(plus_one).batch(4)
    assert written(twice, "parallel_calls") == "mixed"
    assert written(tf.data.Dataset.range(3).repeat(), "parallel_calls").startswith("nothing")
    assert written(numbers().batch(4).prefetch(AUTO), "prefetch") == "auto"
    assert written(numbers().batch(4).prefetch(3).repeat(), "prefetch") == 3
    assert written(numbers().prefetch(3).batch(4), "prefetch") == 0


def check_autotune_in_the_script_leaves_nothing_to_do() -> None:
    def tuned() -> Any:
        return numbers().map(noise, num_parallel_calls=AUTO).batch(4).prefetch(AUTO)

    trial = after(tuned, parallel_calls="auto", prefetch="auto")
    assert trial.evidence("parallel_calls") == (REFUSED, "the script is written so already")
    assert trial.evidence("prefetch") == (REFUSED, "the script is written so already")


def check_what_tensorflow_does_by_itself_is_no_effect() -> None:
    trial = after(lambda: numbers().map(plus_one).shuffle(9).batch(4), parallel_calls="auto", prefetch="auto")
    assert trial.watch.applied["parallel_calls"].changed == 1
    assert trial.evidence("parallel_calls") == (REFUSED, SAME_PLAN)
    assert trial.evidence("prefetch") == (REFUSED, SAME_PLAN)


def check_a_stateful_map_gains_from_being_asked() -> None:
    def plain() -> Any:
        return numbers().map(noise).shuffle(9).batch(4)

    assert after(plain, parallel_calls="auto").evidence("parallel_calls") == ("verified", "")
    assert after(plain, parallel_calls=2).evidence("parallel_calls") == ("verified", "")

    def parallel() -> Any:
        return numbers().map(noise, num_parallel_calls=2, deterministic=False).shuffle(9).batch(4)

    assert after(parallel, parallel_calls="none").evidence("parallel_calls") == ("verified", "")


def check_a_plan_that_shows_otherwise_contradicts() -> None:
    trial = after(lambda: numbers().map(noise).batch(4), parallel_calls=2)
    trial.watch.plans.plan = [(0, "Root", None, None), (1, "ParallelMapV2", 7, 8)]
    assert trial.evidence("parallel_calls") == ("contradicted", "the plan has ParallelMapV2 7")


def check_a_plan_that_cannot_be_read() -> None:
    def quiet() -> Any:
        options = tf.data.Options()
        options.autotune.enabled = False
        return numbers().map(noise).batch(4).with_options(options)

    evidence, reason = after(quiet, parallel_calls=2).evidence("parallel_calls")
    assert evidence == "unverifiable" and reason.startswith("TensorFlow doesn't tell its plan")


def check_prefetch() -> None:
    def shuffled() -> Any:
        return numbers().shuffle(9).batch(4)

    assert after(shuffled, prefetch=5).evidence("prefetch") == ("verified", "")

    def deep() -> Any:
        return numbers().prefetch(7).batch(4).prefetch(3).map(plus_one).prefetch(2)

    trial = after(deep, prefetch=9)
    assert trial.evidence("prefetch") == ("verified", "")
    assert depths(Trial(prefetch=9).watch.adapt(deep())) == [9, 3, 7]
    made = Trial(prefetch=0).watch.adapt(deep())
    assert depths(made) == [7]
    assert values(made) == values(deep())


def depths(dataset: Any) -> list[int]:
    """Of all its prefetches, as TensorFlow has them."""
    own = [int(dataset._buffer_size)] if type(dataset).__name__ == "_PrefetchDataset" else []
    return own + [depth for below in dataset._inputs() for depth in depths(below)]


# cache


def check_a_cache_lasts_over_epochs() -> None:
    counted = Counted()
    dataset = numbers(20).map(counted).shuffle(20).batch(4)
    trial = Trial(cache=True)
    for _ in range(3):
        assert sorted(values(trial.watch.adapt(dataset))) == list(range(1000, 1020))
    assert counted.calls == 20


def check_a_cache_says_from_when_on_it_gains() -> None:
    def dataset() -> Any:
        return numbers(20).map(plus_one).batch(4)

    for batches, epochs, told in ((4, 1, STILL_FILLING), (0, 1, FILLS), (0, 3, FILLS)):
        trial = Trial(cache=True)
        trial.train(dataset(), batches=batches, epochs=epochs)
        assert trial.evidence("cache") == ("verified", f"{told} (about 20 samples in a pass)")


def check_a_cache_of_the_scripts_own_is_waited_for_where_it_is_soon_full() -> None:
    """Its first pass is no figure of the later ones: a window that lay in it told of nothing else."""

    def began(**knowledge: Any) -> tuple[Trial, list[float]]:
        trial, now = Trial(knowledge), [0.0]
        trial.session.clock._clock = lambda: now[0]
        trial.watch.meet(numbers(400).map(plus_one).cache().shuffle(40).batch(4), batched=True)
        trial.watch.saw_batch(4)
        return trial, now

    def remarks(trial: Trial) -> list[str]:
        trial.watch.observe()
        return [text for text in trial.session.facts.remarks if "cache" in text]

    for seconds, waits in ((0.1, True), (5.0, False)):  # of a batch: a pass takes 10 s, or 500
        trial, now = began()
        filling = [trial.session.clock.is_filling()]
        for _ in range(3):
            now[0] += seconds
            trial.watch.saw_batch(4)
            filling.append(trial.session.clock.is_filling())
        assert filling == [True, waits, waits, waits]
        assert len(remarks(trial)) == 1 and "about 400 samples" in remarks(trial)[0]
        for _ in range(100):
            trial.watch.saw_batch(4)
        assert trial.watch.filling.begins_anew and not trial.session.clock.is_filling()
    # Where that of the script as written saw its first pass alone, no other trial is held against it behind its own.
    trial, now = began(framework="keras", samples=200.0)
    assert not trial.session.clock.is_filling()
    assert not trial.session.clock.is_past()
    for _ in range(100):
        trial.watch.saw_batch(4)
    assert not trial.watch.filling.begins_anew
    assert trial.session.clock.is_past(), "its window ends with the pass, as that of the script as written did"
    unknown = Trial()
    unknown.watch.meet(numbers(40).filter(lambda x: x > 3).cache().batch(4), batched=True)
    assert not unknown.session.clock.is_filling() and not remarks(unknown)
    full = Trial()
    full.train(numbers(40).map(plus_one).cache().batch(4), batches=0, epochs=2)
    assert not full.session.clock.is_filling() and not remarks(full)


def check_a_cache_that_the_script_as_written_has_filled_is_waited_for() -> None:
    """Its rate is that of a full cache, and a trial's in its first pass would be held against that."""
    trial = Trial({"framework": "keras", "samples": 900.0})
    now = [0.0]
    trial.session.clock._clock = lambda: now[0]
    trial.watch.meet(numbers(400).map(plus_one).cache().shuffle(40).batch(4), batched=True)
    waited = []
    for _ in range(3):
        trial.watch.saw_batch(4)
        waited.append(trial.session.clock.is_filling())
        now[0] += 5.0
    assert waited == [True, True, True] and trial.session.clock.fill_s() == LONGEST_FILL_S
    for _ in range(100):
        trial.watch.saw_batch(4)
    assert not (trial.session.clock.is_filling() or trial.session.clock.is_past())


def check_a_shuffle_before_the_map_is_moved_behind_the_cache() -> None:
    counted = Counted()

    def shuffled() -> Any:
        return numbers(20).shuffle(20, seed=3).map(counted).repeat().batch(4)

    tf.random.set_seed(1)
    plain = values(shuffled().take(10))
    counted.calls = 0
    tf.random.set_seed(1)
    made = Trial(cache=True).watch.adapt(shuffled())
    assert values(made.take(10)) == plain, "the order of the samples is the script's, in each epoch"
    assert plain[:20] != plain[20:]
    assert counted.calls == 20


def check_seeds_stay_as_they_were() -> None:
    def shuffled() -> Any:
        tf.random.set_seed(5)
        return numbers(20).map(plus_one).shuffle(20).batch(4)

    plain, later = values(shuffled()), tf.random.uniform([]).numpy()
    made = Trial(prefetch=3, parallel_calls=2).watch.adapt(shuffled())
    assert tf.random.uniform([]).numpy() == later, "a dataset made again takes no random number from the script"
    assert values(made) == plain


def check_stateful_maps_run_each_time_behind_the_cache() -> None:
    once, always = Counted(), Counted(stateful=True)
    made = Trial(cache=True).watch.adapt(numbers(20).map(once).map(always).batch(4))
    for _ in range(2):
        assert values(made) == list(range(2000, 2020))
    assert (once.calls, always.calls) == (20, 40)


def check_caches_that_would_lie_or_not_end() -> None:
    counted = Counted()
    mapped = numbers(20).map(counted)
    assert written(numbers(20).repeat().map(plus_one).filter(lambda x: True).batch(4), "cache") is False
    assert written(mapped.filter(lambda x: x > 2).batch(4), "cache").endswith("counted before they are read")
    for in_memory in (numbers(20).shuffle(9), numbers(20).shuffle(9).map(noise)):
        assert written(in_memory.batch(4), "cache") == "the data lie in memory already, as they are"
    read = numbers(20).shuffle(9).flat_map(tf.data.Dataset.from_tensors)  # as the records of files are
    assert written(read.batch(4), "cache") == "the data are shuffled anew before flat_map"
    read = numbers(20).repeat().flat_map(tf.data.Dataset.from_tensors)
    assert written(read.batch(4), "cache") == "the data are repeated before flat_map"
    assert written(mapped.batch(4).take(2).cache(), "cache") == "the script caches its data itself"
    assert written(mapped.shuffle(20).take(9).batch(4), "cache").startswith("only a part of the data")
    assert written(tf.data.Dataset.range(2**62).map(counted).batch(4), "cache") == "the data are endless"
    generated = tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec((), tf.int64))
    assert written(generated.map(counted).batch(4), "cache") == "a Python generator makes the data"
    python = numbers(20).map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)).batch(4)
    assert "calls Python" in written(python, "cache")
    assert "holds RandomUniform" in written(numbers(20).map(noise).batch(4), "cache")


def check_the_order_of_files_is_not_frozen() -> None:
    folder = Path(tempfile.mkdtemp())
    for index in range(9):
        (folder / f"{index}.txt").write_text(str(index))
    dataset = tf.data.Dataset.list_files(str(folder / "*.txt")).map(tf.io.read_file).batch(9)
    made: Any = Trial(cache=True).watch.adapt(dataset)
    orders = {tuple(bytes(x) for batch in made for x in batch.numpy()) for _ in range(8)}
    assert len(orders) > 1 and all(sorted(order) == sorted(min(orders)) for order in orders)


def check_a_cache_shows_in_the_plan() -> None:
    def mapped() -> Any:
        return numbers(20).map(plus_one).shuffle(9).batch(4)

    baseline = Trial()
    baseline.train(mapped())
    knowledge = baseline.knowledge()
    assert (knowledge["cache_bytes"], knowledge["cardinality"]) == (160, 5)
    trial = Trial(knowledge, cache=True)
    trial.train(mapped(), batches=0, epochs=2)
    assert trial.evidence("cache")[0] == "verified"


def check_a_cache_that_is_thrown_away_each_time() -> None:
    trial = Trial(cache=True)
    for _ in range(4):
        trial.train(numbers(20).map(plus_one).shuffle(9).batch(4))
    assert trial.evidence("cache")[0] == "contradicted"
    counted = Counted()
    base = numbers(20).map(counted)
    trial = Trial(cache=True)
    for _ in range(4):
        trial.train(base.shuffle(9).batch(4), batches=0)
    assert trial.evidence("cache")[0] == "verified"
    assert counted.calls == 20


def check_strings_are_measured_for_the_cache() -> None:
    trial = Trial()
    trial.watch.meet(numbers(10).map(lambda x: tf.repeat("abcd", 5)).batch(2), batched=True)
    assert trial.session.facts.cache_bytes == 10 * 5 * (24 + 4)
