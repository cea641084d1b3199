"""TensorFlow's rewriting of graphs to bf16: offered, seen in the graphs that ran, under fit and in a loop."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.child.tensorflow.mixed_precision import NOT_REWRITTEN

pytestmark = pytest.mark.timeout(300)
Write = Callable[..., Path]
Run = Callable[..., Any]
KNOB = "grappler_mixed_precision"
LOOP = textwrap.dedent("""
    import sys
    import tensorflow as tf
    kind, steps = sys.argv[1], int(sys.argv[2])
    if kind == "sets it back":
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": False})
    tf.random.set_seed(0)
    first, last = tf.Variable(tf.random.normal([64, 64]) / 8), tf.Variable(tf.random.normal([64, 1]) / 8)
    data = tf.random.normal([512, 64])
    target = tf.reduce_sum(data[:, :8], 1, keepdims=True)

    @tf.function(jit_compile=kind == "compiled")
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.nn.relu(x @ first) @ last - y) ** 2)
        for variable, gradient in zip((first, last), tape.gradient(loss, [first, last])):
            variable.assign_sub(0.01 * gradient)
        return loss

    if kind == "eager":
        tf.config.run_functions_eagerly(True)
    done = 0
    while done < steps:
        for x, y in tf.data.Dataset.from_tensor_slices((data, target)).batch(32):
            loss, done = step(x, y), done + 1
    print("loss", float(loss))
""")
FIT = textwrap.dedent("""
    import sys
    import keras, numpy
    model = keras.Sequential([
        keras.layers.Input([64]), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1),
    ])
    model.compile("sgd", "mse")
    x = numpy.random.default_rng(0).random((512, 64), dtype="float32")
    model.fit(x, x.sum(1, keepdims=True), batch_size=32, epochs=int(sys.argv[2]), verbose=0)
""")
ENDLESS = "1000000"


def _is_offered(facts: dict[str, Any]) -> bool:
    """Whether TensorFlow rewrites anything for this processor: where it doesn't, that is the reason given."""
    if KNOB in facts["as_written"]:
        assert facts["as_written"][KNOB] is False
        return True
    assert facts["left_out"][KNOB] == NOT_REWRITTEN
    return False


@pytest.mark.parametrize("text", [LOOP, FIT], ids=["a loop", "fit"])
def test_it_is_offered_and_verified_by_the_graphs_that_ran(write_script: Write, run_child: Run, text: str) -> None:
    script = write_script(text)
    baseline = run_child(script, argv=("plain", ENDLESS))
    assert not [note for note in baseline.of("note") if "observation failed" in note["text"]]
    offered = _is_offered(baseline.facts)
    trial = run_child(script, {KNOB: True}, argv=("plain", ENDLESS))
    assert trial.evidence(KNOB) == ("verified" if offered else "contradicted"), trial.of("knob")
    [report] = trial.of("knob")
    assert (report["sites_changed"] > 0) is offered


@pytest.mark.parametrize(
    ("kind", "why"),
    [("sets it back", "float32"), pytest.param("compiled", "float32", marks=pytest.mark.slow)],
)
def test_it_is_contradicted_where_nothing_was_rewritten(
    write_script: Write, run_child: Run, kind: str, why: str
) -> None:
    trial = run_child(write_script(LOOP), {KNOB: True}, argv=(kind, ENDLESS))
    assert trial.evidence(KNOB) in ("contradicted", "not applicable")
    assert why in trial.of("knob")[0]["reason"] or kind == "compiled"


def test_an_eager_loop_has_nothing_to_rewrite(write_script: Write, run_child: Run) -> None:
    facts = run_child(write_script(LOOP), argv=("eager", ENDLESS)).facts
    assert facts["left_out"][KNOB] == "no product of float32 was seen in a traced training step"


def test_it_is_in_effect_under_autotune_run_and_trains_alike(write_script: Write, run_child: Run) -> None:
    script = write_script(LOOP)
    plain, rewritten = (
        run_child(script, config, mode="apply", argv=("plain", "400")) for config in ({}, {KNOB: True})
    )
    assert (plain.returncode, rewritten.returncode) == (0, 0), rewritten.output
    assert f" in effect: {KNOB}" in rewritten.output and "NOT in effect" not in rewritten.output
    losses = [float(run.output.split("loss ")[1].split()[0]) for run in (plain, rewritten)]
    offered = _is_offered(run_child(script, argv=("plain", ENDLESS)).facts)
    assert (losses[0] != losses[1]) is offered, "products were rounded"
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
