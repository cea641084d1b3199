"""What is no part of a window of Keras, or no wait: compilation for another shape, and a step of the only thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, model

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
WHOLE = {"warmup_steps": 1, "warmup_s": 0, "block_s": 0.02, "min_s": 60, "max_s": 60}


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize(
    ("rows", "shapes", "compiled"),
    [
        (100, 2, {"jit_compile": True}), pytest.param(96, 1, {"jit_compile": True}, marks=pytest.mark.slow),
        (100, 2, {"jit_compile": True, "steps_per_execution": 2}), (100, 0, {"jit_compile": False}),
        pytest.param(100, 0, {"jit_compile": True, "run_eagerly": True}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_each_shape_that_xla_compiles_begins_the_window_anew(
    begin: Begin, rows: int, shapes: int, compiled: dict[str, Any]
) -> None:
    trial = begin()
    x, y = arrays(rows)
    model(**compiled).fit(x, y, batch_size=32, epochs=3, verbose=0)
    fits = trial.adapter.watches.fits
    assert fits is not None
    assert trial.adapter.activity() == fits.steps.traces + shapes


@pytest.mark.slow  # 3 s beside three others
def test_another_model_compiles_the_same_shapes_again(begin: Begin) -> None:
    trial = begin()
    x, y = arrays(100)
    for expected in (2, 4):
        model(jit_compile=True).fit(x, y, batch_size=32, epochs=1, verbose=0)
        fits = trial.adapter.watches.fits
        assert fits is not None and fits.steps.graph is not None
        assert fits.steps.graph.shapes.number == expected


def test_each_function_that_a_script_trains_with_begins_the_window_anew(begin: Begin) -> None:
    trial = begin()
    (x, y), made = arrays(100), model()
    seen = [trial.adapter.activity()]

    def trains_with(another: Any, rows: int) -> int:
        another.fit(x[:rows], y[:rows], batch_size=32, epochs=2, verbose=0)
        seen.append(trial.adapter.activity())
        return len(set(seen))

    assert trains_with(made, 100) == 2  # whose last batch is short: another trace
    assert trains_with(model(), 96) == 3
    assert trains_with(model(), 96) == 4
    assert trains_with(made, 96) == 4  # as it was made before
    made.compile("sgd", "mse")
    assert trains_with(made, 96) == 5


def test_a_tensor_of_unknown_rank_is_left_out(begin: Begin) -> None:
    trial = begin()
    tf: Any = sys.modules["tensorflow"]
    fits = trial.adapter.watches.fits
    assert fits is not None and fits.steps.graph is not None
    fits.steps.graph.prepare()
    shapes = fits.steps.graph.shapes

    def note(unknown: Any, known: Any) -> None:
        shapes.note([unknown, known], 1)

    noted = tf.function(note, input_signature=[tf.TensorSpec(None), tf.TensorSpec([None, 2])])
    for rows in (3, 3, 4):
        noted(tf.zeros([rows, 2]), tf.zeros([rows, 2]))
    assert shapes.number == 2


DEEP = """
    import keras, numpy
    x = numpy.random.default_rng(0).random((2029, 64), dtype="float32")
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=True)
    model.fit(x, x.sum(1), batch_size=16, epochs=2, verbose=0)
"""


@pytest.mark.slow  # in one process: below
def test_what_the_last_batch_of_an_epoch_compiles_is_not_in_the_window(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    ran = run_child(write_script(DEEP), window=WHOLE)
    assert ran.returncode == 0, ran.output
    blocks = [block for block in ran.of("block") if not block["flagged"]]
    began = next(n for n, block in enumerate(blocks) if block["phase"] == "window")
    compiling = max(blocks[began:], key=lambda block: block["seconds"] / block["steps"])
    again = [n for n, block in enumerate(blocks) if block["phase"] == "warmup" and n > began]
    assert again and blocks.index(compiling) <= again[0]


# All its time goes into the steps: milliseconds each, and a batch takes a thousandth of that.
WIDE = """
    import keras, numpy
    compiled = JIT
    x = numpy.random.default_rng(0).random((1280, 512), dtype="float32")
    layers = [keras.layers.Dense(512, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=compiled)
    model.fit(x, x.sum(1), batch_size=64, epochs=2, verbose=0)
"""


@pytest.mark.slow  # in a process that starts afresh
@pytest.mark.parametrize("jit", ["False", "True"])
def test_steps_of_the_only_thread_are_no_wait_for_data(
    jit: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """The clock is read before the step that the batch is for, though one thread runs both."""
    ran = run_child(write_script(WIDE.replace("JIT", jit)), {"inter_op_threads": 1}, window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert ran.evidence("inter_op_threads") == "verified"
    blocks = [block for block in ran.of("block") if block["phase"] == "window" and not block["flagged"]]
    assert sum(block["wait_s"] for block in blocks) < 0.3 * sum(block["seconds"] for block in blocks)
