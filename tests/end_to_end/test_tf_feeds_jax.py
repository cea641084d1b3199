"""Loops of JAX's that tf.data feeds, in a real child: the wait for data, and the knobs of its pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.jax_loops import UPDATE, WHOLE, known_by, losses

Run = Callable[..., Any]
Write = Callable[..., Path]

TF_DATA = (
    "import tensorflow as tf\n"
    + UPDATE
    + """
X = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")

def prepare(x):
    for _ in range(WORK):
        x = tf.math.sin(x) + x
    return x, tf.cast(tf.reduce_sum(x) > 0, tf.int32)

data = tf.data.Dataset.from_tensor_slices(X).repeat(3).shuffle(64, seed=1).map(prepare).batch(16)
params, trained = weights(), 0
try:
    for x, y in LOOP:
        params, loss = update(params, X_, Y_)
        trained += len(x)
        print("loss", float(loss).hex())
finally:
    print("trained on", trained, flush=True)
"""
)
LOOPS = {
    "as_numpy_iterator": ("data.as_numpy_iterator()", "x", "y"),
    "by itself": ("data", "x.numpy()", "y.numpy()"),
}


@pytest.mark.slow  # unit/child/test_feeds_of_jax.py, in one process
@pytest.mark.parametrize("kind", ["as_numpy_iterator", pytest.param("by itself", marks=pytest.mark.slow)])
def test_the_wait_for_tf_data_and_its_knobs(kind: str, run_child: Run, write_script: Write) -> None:
    loop, x, y = LOOPS[kind]
    text = TF_DATA.replace("LOOP", loop).replace("X_", x).replace("Y_", y).replace("WORK", "60")
    script = write_script(text)
    ran = run_child(script, window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert [note["text"] for note in ran.of("note")] == []
    facts = ran.facts
    assert (facts["framework"], facts["fed_by"]) == ("jax", "tf.data dataset")
    assert (facts["unit"], facts["samples"]) == ("samples", 768), facts["remarks"]
    assert not facts["wait_is_unseen"] and len(facts["batch_waits"]) > 30 and max(facts["batch_waits"]) > 0
    written = {knob: facts["as_written"].get(knob) for knob in ("parallel_calls", "prefetch", "batch_size")}
    assert written == {"parallel_calls": "none", "prefetch": 0, "batch_size": 16}
    assert facts["left_out"]["num_workers"] == "no DataLoader feeds the training steps"
    config = {"parallel_calls": 2, "prefetch": 4, "deterministic": True, "private_threads": 2}
    turned = run_child(script, config, knowledge=known_by(ran), window=WHOLE)
    assert turned.returncode == 0, turned.output
    assert [note["text"] for note in turned.of("note")] == []
    found = {knob: turned.evidence(knob) for knob in config}
    assert found == {**dict.fromkeys(config, "verified"), "deterministic": "not applicable"}, turned.of("knob")
    assert [report["of_value"] for report in turned.of("knob") if report["knob"] == "deterministic"][-1:] == [True]
    assert losses(turned) == losses(ran) and len(losses(ran)) == 48
    if kind != "by itself":
        return
    applied = run_child(script, config, knowledge=known_by(ran), mode="apply")
    assert applied.returncode == 0 and losses(applied) == losses(ran), applied.output
    assert "in effect: parallel_calls, prefetch, private_threads; NOT in effect: deterministic" in applied.output
