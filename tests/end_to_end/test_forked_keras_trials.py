"""Trials that Keras and TensorFlow train and that are forked are as those that start fresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forked import KNOWN_OF_KERAS, Studied, asked, both, log_of, peaks_of, records_of, run, runner, was_forked

from tuner.model import Outcome
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest, screen_window

__all__ = ["runner"]

SLOW = pytest.mark.slow
FIT = """
    import sys
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(3)
    x = np.random.rand(6400, 8, 8, 3).astype("float32")
    y = np.arange(6400) % 10
    model = keras.Sequential([
        keras.Input((8, 8, 3)), layers.Conv2D(8, 3, activation="relu"), layers.Flatten(), layers.Dropout(0.2),
        layers.Dense(10),
    ])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(640)
    data = data.map(lambda x, y: (tf.image.random_flip_left_right(x) / 2, y)).batch(16)
    saving = keras.callbacks.ModelCheckpoint("model.keras", save_freq=10)
    model.fit(data, epochs=100, verbose=2, callbacks=[saving])
"""
LOOP = """
    import numpy as np
    import tensorflow as tf

    tf.random.set_seed(3)
    weights = tf.Variable(tf.random.normal((64, 10)))
    data = tf.data.Dataset.range(640).shuffle(640).batch(16).repeat()

    @tf.function
    def train(rows):
        x = tf.random.stateless_normal((16, 64), (1, 2)) + tf.cast(rows[:, None], tf.float32) / 640
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights) ** 2)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
        return loss

    for rows in data:
        train(rows)
"""

THEIRS = b"the user's own"


@pytest.fixture(scope="module")
def of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studied]:
    """``FIT``, and a file of the user's."""
    made = Studied.of(FIT, KNOWN_OF_KERAS, tmp_path_factory.mktemp("script"))
    made.script.with_name("model.keras").write_bytes(THEIRS)
    yield made
    made.runner.close()


@pytest.fixture
def fit(of_module: Studied, monkeypatch: pytest.MonkeyPatch) -> Studied:
    """Trains, and writes over a file of the user's again and again."""
    of_module.surround(monkeypatch)
    return of_module


def seeded(runner: ProcessRunner, folder: Path, script: Path, seed: int | None) -> list[tuple[TrialRequest, Outcome]]:
    """The script's trial on a seed, whose losses are told step by step: as it starts fresh, and as it is forked."""
    return both(runner, folder, script, window=screen_window(1600), seed=seed, knowledge=KNOWN_OF_KERAS)


@pytest.fixture(scope="module")
def pair(of_module: Studied, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[TrialRequest, Outcome]]:
    """A seeded trial of the script as it is written: as it starts fresh, and as it is forked."""
    folder = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as patch:
        of_module.surround(patch)
        return seeded(of_module.runner, folder, of_module.script, 2)


def check_losses(pair: list[tuple[TrialRequest, Outcome]]) -> None:
    """Those of each step, in full."""
    fresh, forked = ([record["value"] for record in records_of(request, "loss")] for request, _ in pair)
    assert len(fresh) >= 20 and fresh == forked


@pytest.mark.slow  # of PyTorch: test_forked_trials.py
def test_losses_are_the_same_to_the_last_bit(pair: list[tuple[TrialRequest, Outcome]]) -> None:
    """On a seed: what imports have drawn before it is drawn again after it."""
    check_losses(pair)


@SLOW
def test_losses_are_the_same_without_a_seed(fit: Studied, tmp_path: Path) -> None:
    """The script sets one of its own."""
    check_losses(seeded(fit.runner, tmp_path, fit.script, None))


@SLOW
@pytest.mark.parametrize("seed", [2, None])
def test_losses_of_a_loop_are_the_same_to_the_last_bit(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path], seed: int | None
) -> None:
    check_losses(seeded(runner, tmp_path, write_script(LOOP), seed))


@pytest.mark.slow  # of PyTorch: test_forked_trials.py
def test_facts_and_watches_are_the_same(pair: list[tuple[TrialRequest, Outcome]]) -> None:
    (_, fresh), (_, forked) = pair
    names = ("framework", "framework_version", "as_written", "left_out", "optimizers", "precisions", "watches", "unit",
             "options", "arguments", "remarks", "dataset_len", "counted_steps", "loss_reduction")  # fmt: skip
    for name in names:
        assert getattr(fresh.knowledge, name) == getattr(forked.knowledge, name), name


@pytest.mark.slow  # of PyTorch: test_forked_trials.py
@pytest.mark.parametrize(
    "config",
    [{"inter_op_threads": 1, "private_threads": 1, "prefetch": 4, "parallel_calls": 2, "precision": "bf16"},
     {"batch_size": 8, "grad_accumulation": 2, "jit_compile": False}],
    ids="-".join,
)  # fmt: skip
def test_knobs_are_applied_and_seen(
    fit: Studied, pair: list[tuple[TrialRequest, Outcome]], tmp_path: Path, config: dict[str, Any]
) -> None:
    known = pair[0][1].knowledge
    run(fit.runner, request := asked(tmp_path, fit.script, fresh=False, config=config, knowledge=known))
    assert was_forked(request), fit.runner.why_no_forks
    evidence = {record["knob"]: record["evidence"] for record in records_of(request, "knob")}
    assert evidence == dict.fromkeys(config, "verified"), log_of(request)


@pytest.mark.slow  # of PyTorch: test_forked_trials.py
def test_files_of_the_users_stay_as_they_were(of_module: Studied, pair: list[tuple[TrialRequest, Outcome]]) -> None:
    model = of_module.script.with_name("model.keras")
    assert model.read_bytes() == THEIRS
    for request, _ in pair:
        kept = request.folder / "files" / str(model).lstrip("/")
        assert kept.stat().st_size > 1000


@SLOW  # what is refused, and the words for it: unit/child/test_refused_imports.py
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_what_keras_computes_with_another_backend_starts_fresh(
    runner: ProcessRunner,
    tmp_path: Path,
    write_script: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    script = write_script("import keras\nprint(keras.backend.backend())\n")
    run(runner, request := asked(tmp_path / "trial", script, fresh=False, knowledge=KNOWN_OF_KERAS))
    assert not was_forked(request) and log_of(request).endswith(f"{backend}\n")
    assert runner.why_no_forks == f"Keras computes with {backend}"


@SLOW  # as PyTorch's, which takes half as long (test_forked_trials.py)
def test_memory_isnt_less_for_being_shared(fit: Studied, tmp_path: Path) -> None:
    peaks = peaks_of(fit, tmp_path)
    assert max(peaks[False]) == pytest.approx(max(peaks[True]), rel=0.1), peaks
