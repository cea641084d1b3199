"""What Keras makes, options, probes, strategies: checks that test_tf_data.py has run by tf_data_trials.py."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from support.tf_data_trials import Trial, after, numbers
from support.tf_plan_checks import REFUSED, plus_one
from tuner.child.patches import unpatch_all
from tuner.child.tensorflow.data.filling import FILLS


def check_order_and_threads() -> None:
    def plain() -> Any:
        return numbers().shuffle(9).map(plus_one).batch(4)

    trial = after(plain, deterministic=False, private_threads=5)
    assert trial.evidence("deterministic") == ("verified", "")
    assert trial.evidence("private_threads") == ("verified", "")
    assert trial.session.facts.as_written["deterministic"] is True
    sequential = after(lambda: numbers().shuffle(9).batch(4), deterministic=False, private_threads=5)
    assert sequential.evidence("deterministic")[0] == REFUSED
    assert sequential.evidence("private_threads")[0] == REFUSED


def check_nothing_of_tf_data_trains() -> None:
    trial = Trial(batch_size=16, prefetch=2)
    assert trial.evidence("prefetch") == (REFUSED, "no tf.data dataset feeds training")
    assert not [x for x in trial.log.records if x.get("knob") == "batch_size"]  # arrays have one, too: not ours to say


def check_images_of_a_directory() -> None:
    from keras.utils import image_dataset_from_directory, save_img

    folder = tempfile.mkdtemp()
    for index in range(12):
        path = Path(folder) / f"class{index % 2}" / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        save_img(path, np.full((8, 8, 3), index), scale=False)

    def images() -> Any:
        return image_dataset_from_directory(folder, image_size=(8, 8), batch_size=4, seed=1, verbose=False)

    baseline = Trial()
    baseline.train(images())
    told = baseline.knowledge()
    expected = {"batch_size": 4, "parallel_calls": "auto", "prefetch": "auto", "cache": False}
    assert {knob: told["as_written"][knob] for knob in expected} == expected
    assert "left_out" not in told
    assert 12 * 8 * 8 * 3 * 4 <= told["cache_bytes"] <= 1.1 * 12 * 8 * 8 * 3 * 4
    trial = Trial(told, batch_size=6, cache=True)
    for _ in range(2):
        batches = trial.train(images(), batches=0)
        assert [x.shape for x, _ in batches] == [(6, 8, 8, 3)] * 2
        seen = Counter((int(x[0, 0, 0]), int(y)) for xs, ys in batches for x, y in zip(xs.numpy(), ys, strict=True))
        assert seen == {(index, index % 2): 1 for index in range(12)}
    assert trial.evidence("cache") == ("verified", f"{FILLS} (about 12 samples in a pass)")
    assert trial.evidence("batch_size") == ("verified", "")


def check_texts_of_a_directory() -> None:
    from keras.utils import text_dataset_from_directory

    folder = tempfile.mkdtemp()
    for index in range(12):
        path = Path(folder) / f"class{index % 2}" / f"{index}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"text {index}")
    dataset = text_dataset_from_directory(folder, batch_size=4, seed=1, verbose=False)
    batches = Trial(batch_size=6, cache=True).train(dataset, batches=0)
    assert {bytes(x) for xs, _ in batches for x in xs.numpy()} == {b"text %d" % index for index in range(12)}
    assert len(batches) == 2


def check_timeseries() -> None:
    from keras.utils import timeseries_dataset_from_array

    def windows() -> Any:
        rows = np.arange(40)
        return timeseries_dataset_from_array(rows, rows[5:], 5, batch_size=4, shuffle=True, seed=1)

    plain = [int(y) for _, ys in windows() for y in ys]
    trial = Trial(batch_size=9, cache=True, parallel_calls=2, prefetch=3)
    batches = trial.train(windows(), batches=0)
    assert [len(ys) for _, ys in batches] == [9, 9, 9, 8]
    assert all(int(x[-1]) + 1 == int(y) for xs, ys in batches for x, y in zip(xs, ys, strict=True))
    assert sorted(int(y) for _, ys in batches for y in ys) == sorted(plain)
    assert trial.evidence("cache") == ("verified", f"{FILLS} (about 35 samples in a pass)")


def check_a_strategy_takes_what_was_adapted() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    trial = Trial(batch_size=10)
    shared = strategy.experimental_distribute_dataset(trial.watch.adapt(numbers(20).batch(4)))
    assert not trial.watch.is_dataset(shared)
    trial.watch.fed_by(iter(shared))
    assert [int(batch.shape[0]) for batch in shared] == [10, 10]


def check_fit_tells_no_effect_from_effect() -> None:
    import keras

    from support.keras_trials import Trial as FitTrial

    def fit(told: dict[str, Any], **config: Any) -> FitTrial:
        unpatch_all()
        trial = FitTrial(config, told)
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        rows = tf.data.Dataset.from_tensor_slices((np.zeros((400, 3), np.float32), np.zeros((400, 1), np.float32)))
        # The shuffle takes in all of the data with the first batch: what stands before it is gone afterwards.
        shuffled = rows.map(lambda x, y: (x + 1, y)).map(noisy).shuffle(400).batch(4)
        model.fit(shuffled, epochs=2, verbose=0)
        return trial

    def noisy(x: Any, y: Any) -> Any:
        return x + tf.random.uniform([]), y

    facts = fit({}).end()
    told = {**facts, "as_written": facts["as_written"]}
    assert [line[1] for line in told["input_plan"]].count("Map") == 1
    parallel = fit(told, parallel_calls=2, prefetch="auto", batch_size=10, cache=True)
    parallel.end()
    found = {knob: parallel.evidence(knob)[0] for knob in ("parallel_calls", "prefetch", "batch_size", "cache")}
    assert found == {
        "parallel_calls": "verified", "prefetch": REFUSED, "batch_size": "verified", "cache": "verified",
    }  # fmt: skip
