"""A cache of tf.data in real trainings: what it gains is measured once it is full, and what filling took is charged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.rates import measured

from tuner.objective import RATE, amortised

Run = Callable[..., Any]
Write = Callable[..., Path]
SAMPLES = 320

FIT = """
    import keras, numpy, tensorflow as tf

    def loaded(place):
        # A spell of computing that is no Python of the script's: what calls that is never kept.
        place, ones = tf.cast(place, tf.float32) / 320.0, tf.ones((96, 96))
        spent = tf.while_loop(
            lambda i, x: i < ROUNDS, lambda i, x: (i + 1, tf.linalg.matmul(x, ones) / 96.0), (0, place * ones)
        )[1]
        x = spent[0, :4]
        return x, tf.reduce_sum(x, keepdims=True)

    data = tf.data.Dataset.range(320).map(loaded)CHAIN
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data, epochs=100000, verbose=0FIT_ARGS)
"""
CHAINS = {
    "epochs": (".shuffle(32).batch(8)", ""),
    "repeated": (".repeat().batch(8).prefetch(2)", ", steps_per_epoch=1000"),
    "own": (".cache().shuffle(32).batch(8)", ""),
}
WINDOW = {"warmup_s": 0.3, "warmup_steps": 5, "min_s": 1.0, "max_s": 2.0, "block_s": 0.1}


def script(write: Write, chain: str, rounds: int) -> Path:
    links, arguments = CHAINS[chain]
    text = FIT.replace("ROUNDS", str(rounds)).replace("CHAIN", links).replace("FIT_ARGS", arguments)
    return write(text)


@pytest.mark.slow  # what is known of a cache: support/tf_plan_checks.py
@pytest.mark.parametrize("chain", ["epochs", "repeated"])
def test_the_window_lies_behind_the_first_pass(run_child: Run, write_script: Write, chain: str) -> None:
    path = script(write_script, chain, 400)
    plain = measured(run_child(path, window=WINDOW))
    ran = run_child(path, config={"cache": True}, window=WINDOW)
    cached = measured(ran)
    report = next(knob for knob in cached.knobs if knob.knob == "cache")
    assert report.evidence == "verified" and "320 samples in a pass" in report.reason
    assert "ended before" not in report.reason
    assert cached.rate > 3 * plain.rate, "nothing of the first pass is in its rate"
    filling_s = SAMPLES / plain.rate
    assert cached.warmup_extra_s is not None and plain.warmup_extra_s is not None
    assert 0.4 * filling_s < cached.warmup_extra_s < 3 * filling_s
    assert plain.warmup_extra_s < 0.5 * cached.warmup_extra_s
    # A start takes as long with and without it: how long each was here is of no interest.
    cached = replace(cached, first_step_s=plain.first_step_s)
    one_pass, many = amortised(RATE, SAMPLES), amortised(RATE, 1000 * SAMPLES)
    assert one_pass.score(cached) < 1.5 * one_pass.score(plain), "a first pass gains nothing"
    assert many.score(cached) > 2 * many.score(plain)


@pytest.mark.slow  # when it is waited for, and what is told: support/tf_plan_checks.py
def test_the_window_lies_behind_the_first_pass_of_the_scripts_own_cache(run_child: Run, write_script: Write) -> None:
    """Tried before: it lay in it, and told of knobs of the data what they gain in one pass of very many."""
    plain = measured(run_child(script(write_script, "epochs", 400), window=WINDOW))
    ran = run_child(script(write_script, "own", 400), window=WINDOW)
    assert measured(ran).rate > 3 * plain.rate
    assert not [remark for remark in ran.facts.get("remarks", []) if "cache" in remark]


@pytest.mark.slow  # what ends it, and what is waited for: support/tf_plan_checks.py, test_filling.py
def test_no_trial_is_held_against_the_other_side_of_the_first_pass(run_child: Run, write_script: Write) -> None:
    """Tried before: a window that held some of both, or nothing of what the script as written was measured in."""
    known = {"framework": "keras", "unit": "samples", "as_written": {"batch_size": 8}}
    long = {**WINDOW, "min_s": 60.0, "max_s": 60.0}
    first = run_child(script(write_script, "own", 600), window=long, knowledge={**known, "samples": 100.0})
    *before, last = first.of("block")
    assert last["flagged"] and first.of("window")[0]["complete"] and not first.of("failure")
    assert SAMPLES / 2 < sum(block["samples"] for block in before if not block["flagged"]) <= SAMPLES, before[-4:]
    slow = script(write_script, "own", 2_000)
    later = run_child(slow, window={**WINDOW, "max_s": 1.0}, knowledge={**known, "samples": 3000.0})
    warm_up = [block["samples"] for block in later.of("block") if block["phase"] == "warmup"]
    assert sum(warm_up) > SAMPLES - 16 and not later.of("failure"), later.of("failure")


@pytest.mark.timed
@pytest.mark.slow
def test_a_trial_that_saw_the_first_pass_only_gains_nothing(run_child: Run, write_script: Write) -> None:
    """It waits for the pass as long as it may."""
    path = script(write_script, "repeated", 6_000)
    plain, cached = (measured(run_child(path, config=c, window=WINDOW)) for c in ({}, {"cache": True}))
    [report] = cached.knobs
    assert "ended before its first pass" in report.reason
    assert cached.rate < 1.5 * plain.rate
