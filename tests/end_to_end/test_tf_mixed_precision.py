"""TensorFlow's rewriting of graphs to bf16: offered, seen in the graphs that ran, under fit and in a loop."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.child.tensorflow.mixed_precision import NOT_REWRITTEN, NOTHING_TO_REWRITE

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

    @tf.function
    def validate(x, y):
        return tf.reduce_mean((tf.nn.relu(x @ first) @ last - y) ** 2)

    if kind == "trains eagerly":
        plain = step.python_function
        step = plain
    if kind == "eager":
        tf.config.run_functions_eagerly(True)
    done = 0
    while done < steps:
        for x, y in tf.data.Dataset.from_tensor_slices((data, target)).batch(32):
            loss, done = step(x, y), done + 1
            if kind in ("compiled", "trains eagerly"):
                validate(x, y)
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


@pytest.mark.parametrize("text", [LOOP, pytest.param(FIT, marks=pytest.mark.slow)], ids=["a loop", "fit"])
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
    [("trains eagerly", NOTHING_TO_REWRITE), ("sets it back", "float32"), ("compiled", "")],
)
@pytest.mark.slow  # an eager loop: below
def test_it_is_not_verified_where_nothing_that_trains_was_rewritten(
    write_script: Write, run_child: Run, kind: str, why: str
) -> None:
    """The graph that validates is no evidence: it may be all that TensorFlow rewrites."""
    trial = run_child(write_script(LOOP), {KNOB: True}, argv=(kind, ENDLESS))
    assert trial.evidence(KNOB) in ("contradicted", "not applicable")
    assert why in trial.of("knob")[0]["reason"]
    ran = run_child(write_script(LOOP), {KNOB: True}, mode="apply", argv=(kind, "60"))
    assert ran.returncode == 0, ran.output
    assert f" in effect: {KNOB}" not in ran.output.replace("NOT in effect", "NOT"), ran.output
    assert f"{KNOB} (" in ran.output


def test_an_eager_loop_has_nothing_to_rewrite(write_script: Write, run_child: Run) -> None:
    facts = run_child(write_script(LOOP), argv=("eager", ENDLESS)).facts
    assert facts["left_out"][KNOB] == NOTHING_TO_REWRITE


@pytest.mark.slow
def test_it_is_in_effect_under_autotune_run_and_trains_alike(write_script: Write, run_child: Run) -> None:
    script = write_script(LOOP)
    plain, rewritten = (
        run_child(script, config, mode="apply", argv=("plain", "400")) for config in ({}, {KNOB: True})
    )
    assert (plain.returncode, rewritten.returncode) == (0, 0), rewritten.output
    offered = _is_offered(run_child(script, argv=("plain", ENDLESS)).facts)
    assert ("NOT in effect" not in rewritten.output) is offered and f"in effect: {KNOB}" in rewritten.output
    losses = [float(run.output.split("loss ")[1].split()[0]) for run in (plain, rewritten)]
    assert (losses[0] != losses[1]) is offered, "products were rounded"
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
