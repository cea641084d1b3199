"""Keras on PyTorch, compiled: a trial has the compiler do what it does without us, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)
SCRIPT = """
    import os
    os.environ["KERAS_BACKEND"] = "torch"
    import keras, numpy, torch
    x = numpy.random.default_rng(0).random((96, 4), dtype="float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    model.fit(x, x.sum(1), batch_size=8, epochs=1, verbose=0)
    print("graphs", torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1}


def graphs(output: str) -> int:
    return int(output.partition("graphs ")[2].split()[0])


@pytest.mark.slow  # another backend, whose compiler takes its time
def test_a_step_is_compiled_as_often_as_under_plain_python(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """A counter of ours had it compiled anew with each step, until PyTorch gave up: "verified", and it ran eagerly."""
    script = write_script(SCRIPT)
    plain = subprocess.run(
        [sys.executable, script], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
    )
    ran = run_child(script, {"jit_compile": True}, window=WHOLE, knowledge={"framework": "keras", "backend": "torch"})
    assert ran.returncode == 0 and ran.facts["steps"] == 12, ran.output
    assert ran.evidence("jit_compile") == "verified"
    assert 0 < graphs(ran.output) == graphs(plain.stdout)
    assert ran.of("note") == []


ANEW = SCRIPT.replace(
    "    model = ",
    """    class Own(keras.layers.Dense):
        def call(self, x):
            self.add_loss(0.001 * keras.ops.mean(x))
            return super().call(x)
    model = """,
).replace("keras.layers.Dense(1)])", "Own(1)])")


@pytest.mark.slow
def test_a_step_that_pytorch_gives_up_on_is_not_verified(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Keras keeps each loss that a layer adds, by which the step is compiled anew with each call: without us, too."""
    known = {"framework": "keras", "backend": "torch"}
    ran = run_child(write_script(ANEW), {"jit_compile": True}, window=WHOLE, knowledge=known)
    assert ran.returncode == 0 and ran.facts["steps"] == 12, ran.output
    assert ran.evidence("jit_compile") == "unverifiable", ran.of("knob")
    assert "runs that as it is written" in ran.of("knob")[0]["reason"]
