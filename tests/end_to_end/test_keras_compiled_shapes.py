"""A compiled step of Keras: what XLA compiles for another shape is no part of the window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, model

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
WHOLE = {"warmup_steps": 1, "warmup_s": 0, "block_s": 0.02, "min_s": 60, "max_s": 60}


@pytest.mark.parametrize(
    ("rows", "shapes", "compiled"),
    [
        (100, 2, {"jit_compile": True}), (96, 1, {"jit_compile": True}),
        (100, 2, {"jit_compile": True, "steps_per_execution": 2}), (100, 0, {"jit_compile": False}),
        (100, 0, {"jit_compile": True, "run_eagerly": True}),
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


def test_another_model_compiles_the_same_shapes_again(begin: Begin) -> None:
    trial = begin()
    x, y = arrays(100)
    for expected in (2, 4):
        model(jit_compile=True).fit(x, y, batch_size=32, epochs=1, verbose=0)
        fits = trial.adapter.watches.fits
        assert fits is not None and fits.steps.graph is not None
        assert fits.steps.graph.shapes.number == expected


DEEP = """
    import keras, numpy
    x = numpy.random.default_rng(0).random((2029, 64), dtype="float32")
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=True)
    model.fit(x, x.sum(1), batch_size=16, epochs=2, verbose=0)
"""


def test_what_the_last_batch_of_an_epoch_compiles_is_not_in_the_window(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """And where one thread runs all operations, a fetch waits for the step before it: that isn't the data's doing."""
    ran = run_child(write_script(DEEP), {"inter_op_threads": 1}, window=WHOLE)
    assert ran.returncode == 0, ran.output
    blocks = [block for block in ran.of("block") if not block["flagged"]]
    began = next(n for n, block in enumerate(blocks) if block["phase"] == "window")
    compiling = max(blocks[began:], key=lambda block: block["seconds"] / block["steps"])
    again = [n for n, block in enumerate(blocks) if block["phase"] == "warmup" and n > began]
    assert again and blocks.index(compiling) <= again[0]
    assert ran.facts["wait_is_unseen"] is True
    assert any("one thread runs the compiled steps" in remark for remark in ran.facts["remarks"])
