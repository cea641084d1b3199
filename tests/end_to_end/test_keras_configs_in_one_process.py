"""One live process of a Keras script goes through several configs: ranked, refused, or gone with a reason."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tuner.child.records import Block, DisturbedTurn, Phase, SwitchedTo, Window
from tuner.devices.cpu import cpu_device
from tuner.model import Config, Outcome, OutcomeKind, Rotated, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.records import read_records

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "studies/keras_digits/train.py"
SEVERAL, MORE, BF16 = Config(steps_per_execution=4), Config(steps_per_execution=16), Config(precision="bf16")
EAGER = Config(run_eagerly=False)
SCRIPT = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import keras, numpy
keras.utils.set_random_seed(0)
x = numpy.random.default_rng(0).random((4000, 4), dtype="float32")
hidden = [keras.layers.Dense(16), keras.layers.Dense(16)]
model = keras.Sequential([keras.Input((4,)), *hidden, keras.layers.Dense(1, dtype="float32")])
model.compile(optimizer="sgd", loss="mse")
PREPARE
while True:
    model.fit(x, x.sum(1, keepdims=True), epochs=20, batch_size=16, verbose=0)
"""


PIPELINE = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import keras, numpy, tensorflow as tf
keras.utils.set_random_seed(0)
def heavy(x, y):
    size = 200 + 0 * tf.cast(x[0], tf.int32)
    product = tf.linalg.matmul(tf.random.uniform((size, size)), tf.random.uniform((size, size)))
    return x + 0 * product[0, 0], y
x = numpy.random.default_rng(0).random((4000, 4), dtype="float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).map(heavy).shuffle(500).batch(8)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(16), keras.layers.Dense(1, dtype="float32")])
model.compile(optimizer="sgd", loss="mse")
while True:
    model.fit(data, epochs=20, verbose=0)
"""


def run(folder: Path, script: Path, configs: tuple[Config, ...], **window: Any) -> Outcome:
    length = replace(Window(warmup_steps=4, warmup_s=0.3, block_s=0.05, max_s=1000.0), **window)
    request = TrialRequest(
        folder / "trial", Script(str(script), ()), cpu_device(), Config(), window=length, rotation=configs,
        limits=Limits(trial_timeout_s=240.0),
    )  # fmt: skip
    return ProcessRunner().run(request, threading.Event())


def written(folder: Path, prepare: str = "") -> Path:
    """The script with a model of its own class instead, where that is told."""
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("PREPARE", prepare))
    return path


def found(outcome: Outcome) -> dict[Config, Rotated]:
    return {each.config: each for each in outcome.rotation}


def check(outcome: Outcome) -> None:
    """That these three were ranked, by all their turns."""
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    ranked = found(outcome)
    assert set(ranked) == {SEVERAL, MORE, BF16} and not any(each.fault for each in ranked.values())
    assert all(each.gain is not None and each.pairs >= 1 for each in ranked.values())
    assert outcome.measurement is not None and outcome.measurement.rate > 0
    assert not outcome.measurement.knobs, "no config was asked for"
    assert outcome.measurement.data_wait_share is None, "it isn't timed: of calls of several steps it can't be"


@pytest.mark.timed
@pytest.mark.slow
def test_the_digits_configs_are_ranked_with_all_their_turns(tmp_path: Path) -> None:
    check(run(tmp_path, DIGITS, (SEVERAL, MORE, BF16), warmup_s=1.0, block_s=0.2))


@pytest.mark.slow  # 13 s beside three others
@pytest.mark.timed
def test_many_small_steps_gain_by_calls_of_several(tmp_path: Path) -> None:
    """A step of this network takes a small part of what a call of Python's does."""
    outcome = run(tmp_path, written(tmp_path), (SEVERAL, MORE, BF16))
    check(outcome)
    gain = found(outcome)[MORE].gain
    assert gain is not None and gain.ratio > 1.3, outcome.rotation
    entries = read_records(tmp_path / "trial/records.jsonl")
    turns = {entry.record.turn: entry.record.config for entry in entries if isinstance(entry.record, SwitchedTo)}
    for entry in entries:
        block = entry.record
        if isinstance(block, Block) and block.phase is Phase.WINDOW and block.turn and not block.flagged:
            assert block.samples <= 16 * block.steps, turns[block.turn]


@pytest.mark.slow  # of PyTorch: unit/child/torch/test_held_loaders.py
@pytest.mark.timed
def test_a_queue_that_others_turns_would_fill_flatters_nobody(tmp_path: Path) -> None:
    """The data take nearly all of a step's time: with 64 batches ahead the loop is as fast, but for a queue that was
    filled before. In the turns of all others together some 40 batches could be made, in its own 15.
    """
    script = tmp_path / "train.py"
    script.write_text(PIPELINE)
    deep, calls = Config(prefetch=64), Config(parallel_calls=2)
    outcome = run(tmp_path, script, (deep, calls, SEVERAL), block_s=0.4)
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    ranked = found(outcome)
    assert not any(each.fault for each in ranked.values()), ranked
    gain = ranked[deep].gain
    assert gain is not None and gain.ratio < 1.5, "while it trains the next batch is made, and no more"
    switches = [entry.record for entry in read_records(tmp_path / "trial/records.jsonl")]
    assert all(record.loads for record in switches if isinstance(record, SwitchedTo))
    blocks = [each for each in switches if isinstance(each, Block) and each.turn and each.phase is Phase.WINDOW]
    known = [each for each in blocks if each.ready_before is not None and each.ready_after is not None]
    assert len(known) > 0.7 * sum(not each.flagged for each in blocks), "but where an epoch ends, which leaves nothing"


COMPILED = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import keras, numpy, tensorflow as tf
x = numpy.random.default_rng(0).random((6_405, 16), dtype="float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(16)
hidden = [keras.layers.Dense(16, "relu") for _ in range(12)]
model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(1, dtype="float32")])
model.compile(optimizer="adam", loss="mse", jit_compile=True)
while True:
    model.fit(data, epochs=20, verbose=0)
"""


@pytest.mark.timed
@pytest.mark.slow  # step by step: test_keras_switched.py
def test_what_xla_compiles_for_the_last_batch_of_an_epoch_is_in_no_turn(tmp_path: Path) -> None:
    """Nothing tells of its size before: each of them compiles its step for it in the turn in which it comes first."""
    script = tmp_path / "train.py"
    script.write_text(COMPILED)
    outcome = run(tmp_path, script, (SEVERAL, BF16))
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    assert not any(each.fault for each in outcome.rotation), outcome.rotation
    records = [entry.record for entry in read_records(tmp_path / "trial/records.jsonl")]
    apart = {each.turn for each in records if isinstance(each, DisturbedTurn)}
    apart |= {each.turn for each in records if isinstance(each, SwitchedTo) and each.warm_up}
    blocks = [each for each in records if isinstance(each, Block) and each.turn and each.phase is Phase.WINDOW]
    ordinary = median(block.seconds / block.steps for block in blocks if block.steps)
    slow = [block for block in blocks if block.turn not in apart and block.seconds > 0.3 + 50 * ordinary]
    assert not slow, slow


@pytest.mark.slow  # in this process: test_keras_claims.py
def test_what_python_does_in_each_step_keeps_a_config_from_being_traced(tmp_path: Path) -> None:
    """Eager as written, with a step that counts in Python: the traced one is told apart, the others go on."""
    prepare = (
        "class Counting(keras.Sequential):\n"
        "    calls = 0\n"
        "    def train_step(self, data):\n"
        "        self.calls += 1\n"
        "        return super().train_step(data)\n"
        "model = Counting([keras.Input((4,)), keras.layers.Dense(1)])\n"
        "model.compile(optimizer='sgd', loss='mse', run_eagerly=True)"
    )
    outcome = run(tmp_path, written(tmp_path, prepare), (EAGER, BF16))
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    ranked = found(outcome)
    assert ranked[EAGER].gain is None and "stands still in the graph" in ranked[EAGER].fault
    assert ranked[BF16].gain is not None


@pytest.mark.slow  # as PyTorch's (test_configs_in_one_process.py)
def test_a_loss_that_becomes_no_number_costs_no_process(tmp_path: Path) -> None:
    """In bf16 the step multiplies its loss by no number: it leaves, and what it spoilt is put back."""
    prepare = (
        "class Spoilt(keras.Sequential):\n"
        "    def compute_loss(self, *args, **kwargs):\n"
        "        loss = super().compute_loss(*args, **kwargs)\n"
        "        return loss * float('nan') if self.layers[0].compute_dtype == 'bfloat16' else loss\n"
        "model = Spoilt([keras.Input((4,)), keras.layers.Dense(1)])\n"
        "model.compile(optimizer='sgd', loss='mse')"
    )
    outcome = run(tmp_path, written(tmp_path, prepare), (SEVERAL, BF16, MORE))
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    ranked = found(outcome)
    assert ranked[BF16].gain is None and "not finite" in ranked[BF16].fault
    assert ranked[SEVERAL].gain is not None and ranked[MORE].gain is not None
    assert outcome.measurement is not None
    (series,) = outcome.measurement.losses
    assert series.points[-1][1] < 10, "it trains on from the weights that were kept"


@pytest.mark.slow  # in this process: test_keras_batches.py
def test_a_model_that_makes_its_training_function_itself_has_none(tmp_path: Path) -> None:
    prepare = (
        "class Own(keras.Sequential):\n"
        "    def make_train_function(self, force=False):\n"
        "        return super().make_train_function(force)\n"
        "model = Own([keras.Input((4,)), keras.layers.Dense(1)])\n"
        "model.compile(optimizer='sgd', loss='mse')"
    )
    outcome = run(tmp_path, written(tmp_path, prepare), (SEVERAL, BF16))
    assert outcome.kind is OutcomeKind.INFEASIBLE and outcome.reason == "unsupported"
    assert "no rotation: its model makes its training function itself" in outcome.detail
    assert not outcome.rotation
