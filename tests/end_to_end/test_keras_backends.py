"""``Model.fit`` on Keras' other backends, in a real child: the same adapter counts, turns and probes there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

TRAIN = """
    import os, sys
    os.environ["KERAS_BACKEND"] = sys.argv[1]
    import json, keras, numpy
    keras.utils.set_random_seed(1)
    x = numpy.random.default_rng(0).random((100, 4), dtype="float32")
    layers = keras.layers
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="relu"), layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    before = [w.copy() for w in model.get_weights()]
    history = model.fit(x, x.sum(1), batch_size=20, epochs=4, validation_data=(x, x.sum(1)), verbose=0).history
    changed = any(not numpy.array_equal(a, b) for a, b in zip(before, model.get_weights()))
    print("told", json.dumps({"loss": history.get("loss"), "val_mae": history["val_mae"], "changed": changed}))
"""
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1}


@pytest.fixture(params=[pytest.param("torch", marks=pytest.mark.slow), "jax"])
def train(
    request: pytest.FixtureRequest, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """A whole training under the child, and what the script itself told at its end."""

    def run(config: dict[str, Any] | None = None, **more: Any) -> tuple[Any, dict[str, Any]]:
        ran = run_child(write_script(TRAIN), config, argv=(request.param,), window=WHOLE, **more)
        assert ran.returncode == 0, ran.output
        told = re.search(r"told (.*)", ran.output)
        assert told, ran.output
        return ran, json.loads(told[1])

    return run


@pytest.mark.slow  # another backend
def test_fit_is_counted_and_its_metrics_are_told(train: Callable[..., Any]) -> None:
    ran, told = train()
    assert (ran.facts["samples"], ran.facts["steps"]) == (400, 20)
    assert [note["text"] for note in ran.of("note")] == []  # a model has a strategy on TensorFlow only
    assert ran.facts["as_written"]["batch_size"] == 20
    metrics = {record["name"]: record["value"] for record in ran.of("metric")}
    assert metrics["val_mae"] == pytest.approx(told["val_mae"][-1])
    assert ran.of("loss")


@pytest.mark.slow
def test_batches_come_in_the_order_that_the_script_gives_them(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Tried before: a DataLoader drew its numbers at another moment, and each epoch but the first had another order."""
    script = write_script(TRAIN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    plain = subprocess.run(
        [sys.executable, script, "torch"], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    ran = run_child(script, argv=("torch",), window=WHOLE)
    assert re.findall("told .*", ran.output) == re.findall("told .*", plain.stdout) != []


@pytest.mark.slow
def test_knobs_of_fit_are_turned(train: Callable[..., Any]) -> None:
    ran, _ = train({"batch_size": 10, "grad_accumulation": 2})
    assert (ran.facts["samples"], ran.facts["steps"]) == (400, 20)
    assert ran.evidence("batch_size") == ran.evidence("grad_accumulation") == "verified"


@pytest.mark.slow
@pytest.mark.parametrize("side", ["compute", "loader"])
def test_each_side_of_the_loop_runs_by_itself(train: Callable[..., Any], side: str) -> None:
    ran, told = train(probe=side, knowledge={"training_loaders": ["fit"], "framework": "keras"})
    assert ran.facts["samples"] == 400
    assert ran.facts["steps"] == 20
    assert told["changed"] is (side == "compute")
    assert len(told["val_mae"]) == 4


@pytest.mark.slow  # of JAX alone: test_jax_child.py; that nothing is lost: differential/test_keras_run_to_the_end.py
@pytest.mark.parametrize("first", ["", "import jax; jax.devices(); "])
def test_knobs_of_jaxs_client_take_effect_below_keras_and_change_no_loss(
    first: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Also where the script has JAX compute before it imports Keras."""
    script = write_script(TRAIN.replace("import json", f"{first}import json"))
    config = {"threads": 1, "async_dispatch": False}
    written = run_child(script, argv=("jax",), window=WHOLE)
    own = written.facts["as_written"]
    assert own["threads"] >= 1 and own["async_dispatch"] is True and "threads" not in written.facts["left_out"]
    assert written.facts["left_out"]["inter_op_threads"] == "Keras computes with jax here"
    ran = run_child(script, config, argv=("jax",), window=WHOLE, knowledge={"framework": "keras", "backend": "jax"})
    assert {knob: ran.evidence(knob) for knob in config} == dict.fromkeys(config, "verified"), ran.of("knob")
    applied = run_child(script, config, argv=("jax",), mode="apply", knowledge={"framework": "keras", "backend": "jax"})
    assert "autotune: after 20 steps in effect: threads, async_dispatch" in applied.output.splitlines(), applied.output
    told = [re.findall("told .*", each.output) for each in (written, ran, applied)]
    assert told[0] == told[1] == told[2] != []


@pytest.mark.slow  # another backend
def test_threads_of_pytorch_take_effect_below_keras(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """They were left out as TensorFlow's, and beside a busy core two threads took twenty times as long as one."""
    script = write_script(TRAIN + "    import torch; print('computes in', torch.get_num_threads())\n")
    written = run_child(script, argv=("torch",), window=WHOLE)
    assert f"computes in {written.facts['as_written']['threads']}" in written.output
    assert written.facts["left_out"]["inter_op_threads"] == "Keras computes with torch here"
    known = {"framework": "keras", "backend": "torch"}
    ran = run_child(script, {"threads": 2}, argv=("torch",), window=WHOLE, knowledge=known)
    assert ran.evidence("threads") == "verified" and "computes in 2" in ran.output, ran.of("knob")
    applied = run_child(script, {"threads": 2}, argv=("torch",), mode="apply", knowledge=known)
    assert "autotune: after 20 steps in effect: threads" in applied.output.splitlines(), applied.output


LOSSES = """
    import os
    os.environ["KERAS_BACKEND"] = "jax"
    import keras, numpy
    x, y = numpy.ones((200, 4), "float32"), numpy.arange(200, dtype="float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(x, y, batch_size=20, epochs=2, shuffle=False, verbose=0)
"""


@pytest.mark.slow  # another backend
def test_a_loss_on_jax_is_that_of_the_steps_since_the_last_one(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """It was the mean over the epoch so far, which hardly moves at its end: a screen saw half of what a config lost."""
    ran = run_child(write_script(LOSSES), window={**WHOLE, "block_s": 0.0})
    assert ran.returncode == 0, ran.output
    of = [sum(number**2 for number in range(first, first + 20)) / 20 for first in range(0, 200, 20)]
    expected = [(of[0] + of[1]) / 2, *of[2:], *of]  # with the first step nothing is read
    assert [loss["value"] for loss in ran.of("loss")] == pytest.approx(expected, rel=1e-4)


PRECISE = """
    import os, sys
    os.environ["KERAS_BACKEND"] = sys.argv[1]
    import keras, numpy
    x = numpy.random.default_rng(0).random((100, 4), dtype="float32")
    layers = keras.layers
    wide = layers.Dense(8, dtype="float32" if sys.argv[2] == "written" else None)
    model = keras.Sequential([keras.Input((4,)), wide, layers.Dense(8, dtype=wide.dtype_policy), layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=sys.argv[3] == "compiled")
    model.fit(x, x.sum(1), batch_size=20, epochs=4, verbose=0)
"""


@pytest.mark.slow  # another backend
@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize(
    ("layers", "evidence"), [("asked", "verified"), ("written", "contradicted")]
)
def test_a_precision_is_read_from_what_is_computed(
    backend: str, layers: str, evidence: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """A policy says what was asked for; most layers of this model have one of their own."""
    how = "compiled" if backend == "jax" else "eager"
    ran = run_child(write_script(PRECISE), {"precision": "bf16"}, argv=(backend, layers, how), window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert ran.evidence("precision") == evidence, ran.of("knob")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["compiled", "eager"])
def test_that_a_step_was_compiled_is_read_from_what_ran(
    how: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    config = {"jit_compile": how != "compiled"}
    ran = run_child(write_script(PRECISE), config, argv=("jax", "asked", how), window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert ran.evidence("jit_compile") == "verified", ran.of("knob")


@pytest.mark.slow  # another backend
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_later_fit_leaves_what_was_seen_of_the_step(
    backend: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """JAX traces it in the first one: behind a second one nothing showed its format, nor that it was compiled."""
    again = "    model.fit(x, x.sum(1), batch_size=20, epochs=4, verbose=0)\n"
    how = "compiled" if backend == "jax" else "eager"
    config: dict[str, Any] = {"precision": "bf16", **({"jit_compile": True} if backend == "jax" else {})}
    ran = run_child(write_script(PRECISE + again), config, argv=(backend, "asked", how), window=WHOLE)
    assert ran.returncode == 0 and ran.facts["steps"] == 40, ran.output
    assert {knob: ran.evidence(knob) for knob in config} == dict.fromkeys(config, "verified"), ran.of("knob")


DATASET = """
    import os
    os.environ["KERAS_BACKEND"] = "jax"
    import keras, numpy
    import tensorflow as tf
    x = numpy.random.default_rng(0).random((100, 4), dtype="float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(tf.data.Dataset.from_tensor_slices((x, x.sum(1))).batch(20), epochs=4, verbose=0)
"""


@pytest.mark.slow  # another backend
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_pipeline_that_keras_iterates_in_python_shows_what_it_executes(
    backend: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Its knobs could be told "can't be verified" only: no iterator of the training data was looked at."""
    script = write_script(DATASET.replace('"jax"', f'"{backend}"').replace("(100, 4)", "(2000, 4)"))
    written = run_child(script, window=WHOLE)
    known = {name: value for name, value in written.facts.items() if name not in ("kind", "t")}
    ran = run_child(script, {"prefetch": 3}, window=WHOLE, knowledge=known)
    assert ran.returncode == 0 and ran.facts["samples"] == 8000, ran.output
    assert ran.evidence("prefetch") == "verified", ran.of("knob")


@pytest.mark.slow
def test_the_device_that_is_missed_is_that_of_what_computes(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """TensorFlow is there for its datasets only: that it sees no GPU means nothing."""
    ran = run_child(write_script(DATASET), window=WHOLE, device="cuda:0")
    assert [record["detail"] for record in ran.of("failure")] == ["JAX sees no GPU here: the steps ran on the CPU"]
    assert ran.facts["samples"] == 400


BY_BATCH = """
    import os, sys
    os.environ["KERAS_BACKEND"] = sys.argv[1]
    import keras, numpy
    chance = numpy.random.default_rng(0)
    def made():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model
    first, second = made(), made()
    for _ in range(12):
        x = chance.random((20, 4), dtype="float32")
        first.train_on_batch(x, x.sum(1))
        second.train_on_batch(x, x.sum(1))
        second.test_on_batch(x, x.sum(1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_train_on_batch_is_counted(
    backend: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    ran = run_child(write_script(BY_BATCH), argv=(backend,), window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert (ran.facts["samples"], ran.facts["steps"], ran.facts["framework"]) == (240, 12, "keras")
    assert "train_on_batch" in ran.facts["left_out"]["batch_size"]
    assert ran.of("loss")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_what_train_on_batch_computes_in_is_read_from_what_ran(
    backend: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Nothing showed it: a format that was at work could be verified by ``fit`` only."""
    ran = run_child(write_script(BY_BATCH), {"precision": "bf16"}, argv=(backend,), window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert ran.evidence("precision") == "verified", ran.of("knob")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_loss_of_train_on_batch_is_that_of_its_step(
    backend: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Before Keras 3.15 a call gives the mean over all calls so far: ``make test-keras`` has such a one."""
    by_batch = "    for n in range(0, 200, 20):\n        model.train_on_batch(x[n : n + 20], y[n : n + 20])\n"
    script = write_script(LOSSES.partition("    model.fit")[0].replace('"jax"', f'"{backend}"') + by_batch)
    ran = run_child(script, window={**WHOLE, "block_s": 0.0})
    assert ran.returncode == 0, ran.output
    of = [sum(number**2 for number in range(first, first + 20)) / 20 for first in range(0, 200, 20)]
    told = [loss["value"] for loss in ran.of("loss")]
    assert told[1:] == pytest.approx(of[2:], rel=1e-4)  # with the first step nothing is read


BY_STAGES = BY_BATCH.partition("    for _ in range(12)")[0] + """
    x = chance.random((20, 4), dtype="float32")
    for _ in range(3):
        for model in first, second:
            for _ in range(8):
                model.train_on_batch(x, x.sum(1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_models_that_train_one_after_another_all_count(
    backend: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Of each stage's steps the first fifty were left out: here all of the second model's."""
    ran = run_child(write_script(BY_STAGES), argv=(backend,), window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert (ran.facts["samples"], ran.facts["steps"]) == (960, 48)
