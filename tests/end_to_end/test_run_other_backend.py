"""``autotune run`` under another backend of Keras than that of the study: said, and refused by a strict run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)
Run = Callable[..., Any]
Write = Callable[..., Path]
SCRIPT = """
    import os, sys
    os.environ["KERAS_BACKEND"] = sys.argv[1]
    import keras, numpy
    if "beside" in sys.argv:
        import tensorflow
    x = numpy.random.default_rng(0).random((100, 4), dtype="float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    if "batches" in sys.argv:
        for _ in range(30):
            model.train_on_batch(x, x.sum(1))
    else:
        model.fit(x, x.sum(1), batch_size=20, epochs=5, verbose=0)
    print("trained", int(model.optimizer.iterations.numpy() if sys.argv[1] != "torch" else model.optimizer.iterations))
"""
KNOWN = {"framework": "keras", "backend": "tensorflow"}
OTHER = "the profile was proven with Keras on tensorflow, and Keras computes with jax here"
DOUBT = f"autotune: {OTHER}: the config may no longer be the best"
CONFIG = {"run_eagerly": False}


def run(run_child: Run, script: Path, *argv: str, config: dict[str, Any] | None = None, **options: Any) -> Any:
    known = {**KNOWN, **options.pop("known", {})}
    return run_child(script, config or CONFIG, argv=argv, mode="apply", knowledge=known, **options)


@pytest.mark.slow  # 10 s beside three others
@pytest.mark.parametrize("how", ["fit", pytest.param("batches", marks=pytest.mark.slow)])
def test_another_backend_than_that_of_the_study_is_told(run_child: Run, write_script: Write, how: str) -> None:
    """Nothing was said: another backend's winner proves nothing."""
    ran = run(run_child, write_script(SCRIPT), "jax", how)
    assert ran.returncode == 0 and "trained" in ran.output, ran.output
    assert ran.output.splitlines().count(DOUBT) == 1, ran.output


@pytest.mark.slow  # test_run_watched.py, of another knob
def test_a_strict_run_refuses_it_before_it_trains(run_child: Run, write_script: Write) -> None:
    ran = run(run_child, write_script(SCRIPT), "jax", strict=True)
    assert ran.returncode == 2 and "trained" not in ran.output, ran.output
    assert [line for line in ran.output.splitlines() if line.startswith("autotune: ")] == [
        f"autotune: error: {OTHER}",
        "autotune: hint: set KERAS_BACKEND=tensorflow, run the study again, or leave out --strict",
    ]


@pytest.mark.slow  # what isn't said
@pytest.mark.parametrize(
    ("config", "known"),
    [
        (CONFIG, {"backend": "jax"}),
        (CONFIG, {"backend": ""}),
        ({**CONFIG, "backend": "jax"}, {"placeholders": ["backend"]}),
        ({**CONFIG, "backend": "jax"}, {"suggested": ["backend"]}),
    ],
    ids=["the same", "unknown", "an argument of the config's", "asked for"],
)
def test_where_it_may_be_the_study_s_nothing_is_said(
    run_child: Run, write_script: Write, config: dict[str, Any], known: dict[str, Any]
) -> None:
    ran = run(run_child, write_script(SCRIPT), "jax", config=config, known=known)
    assert ran.returncode == 0 and "trained" in ran.output and "proven with Keras" not in ran.output, ran.output


@pytest.mark.slow  # another backend
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_what_turns_tensorflow_s_runtime_is_not_in_effect_beside_it(
    run_child: Run, write_script: Write, backend: str
) -> None:
    """TensorFlow, which is there for its datasets, had set its pools: they were told to be in effect."""
    config = {"inter_op_threads": 1, "grappler_mixed_precision": False, "run_eagerly": False}
    ran = run(run_child, write_script(SCRIPT), backend, "beside", config=config, fresh=True)
    why = f"(Keras computes with {backend} here)"
    told = f"NOT in effect: inter_op_threads {why}, grappler_mixed_precision {why}"
    assert f"in effect: run_eagerly; {told}" in ran.output, ran.output


@pytest.mark.slow  # another backend
def test_what_keras_refuses_on_pytorch_is_not_set_there(run_child: Run, write_script: Write) -> None:
    """The profile's several steps in a call ended the script with an error of Keras'."""
    ran = run(run_child, write_script(SCRIPT), "torch", config={"steps_per_execution": 4})
    assert ran.returncode == 0 and "trained" in ran.output, ran.output
    assert "NOT in effect: steps_per_execution (Keras has it on TensorFlow and JAX only)" in ran.output
