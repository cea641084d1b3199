"""What takes long without a step is no stall: loading, validation, compilation. What hangs is ended, and told apart.

Scripts and children are real; limits of minutes are seconds here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.child.records import Knowledge, Window
from tuner.child.watch import Silences
from tuner.devices.cpu import cpu_device
from tuner.model import Config, Outcome, OutcomeKind, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.runner.silence import IDLE_S, IDLE_SHARE

Run = Callable[..., Outcome]

REPORTS = """
import threading, time, tuner
def steps(first, last):
    for step in range(first, last):
        time.sleep(0.01)
        tuner.report(step=step, samples=8 * step)
"""
TORCH = """
import threading, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.ones(8, 4), torch.ones(8, 1)
def steps(count):
    model.train()
    for _ in range(count):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        time.sleep(0.01)
def validate():
    model.eval()
    with torch.no_grad():
        model(x)
        WAIT
"""

TENSORFLOW = """
import time, numpy, keras, tensorflow as tf
traces = 0
def traced():
    global traces
    traces += 1
    time.sleep(4 if traces > FIRST else 0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD()
def data(rows):
    return tf.data.Dataset.from_tensors((tf.ones((rows, 4)), tf.ones((rows, 1)))).repeat(60)
"""
TAPES = """
@tf.function(reduce_retracing=False)
def step(x, y):
    traced()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
for rows in 8, 4:
    for x, y in data(rows):
        step(x, y)
        time.sleep(0.01)
"""
FIT = """
class Traced(keras.Sequential):
    def train_step(self, data):
        traced()
        return super().train_step(data)
model = Traced(model.layers)
model.compile("sgd", "mse")
slow = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.01))
for rows in 8, 4:
    model.fit(data(rows), verbose=0, callbacks=[slow])
"""

UNUSED = "until then its process used none of PyTorch, TensorFlow, Keras and JAX"


@pytest.fixture
def run(tmp_path: Path, write_script: Callable[..., Path]) -> Run:
    def run_script(text: str, *, knowledge: Knowledge | None = None, **limits: Any) -> Outcome:
        given = Limits(**{"trial_timeout_s": 60.0, "no_progress_s": 1.0, **limits})
        window = Window(warmup_steps=3, warmup_s=0.1, block_s=0.05, min_s=600.0, max_s=600.0)
        request = TrialRequest(
            tmp_path / "trial", Script(str(write_script(text)), ()), cpu_device(), Config(), knowledge or Knowledge(),
            window, given,
        )  # fmt: skip
        return ProcessRunner().run(request, threading.Event())

    return run_script


def test_a_model_may_take_long_to_load(run: Run) -> None:
    outcome = run(f"{REPORTS}\ntime.sleep(3)\nsteps(1, 60)")
    assert outcome.complete, outcome.detail
    assert outcome.knowledge.silences.start_up_s > 2.5


@pytest.mark.slow  # 12 s beside three others
def test_a_load_that_takes_all_the_time_that_a_trial_has_is_told_as_that(run: Run) -> None:
    load = "import json, time\n\ndef load(pairs):\n    time.sleep(60)\n\njson.loads('{}', object_pairs_hook=load)\n"
    outcome = run(load, trial_timeout_s=12.0)
    assert outcome.kind is OutcomeKind.TIMED_OUT
    told = rf"not through after 12 s: no training step was seen by then, at line 4 of \w+\.py; {UNUSED}"
    assert re.fullmatch(told, outcome.detail), outcome.detail


@pytest.mark.slow  # 4 s beside three others
def test_a_script_that_leaves_no_log_is_told_of_all_the_same(run: Run) -> None:
    outcome = run("import os, time\nos.close(2)\ntime.sleep(60)", trial_timeout_s=3.0)
    assert outcome.detail == f"not through after 3 s: no training step was seen by then; {UNUSED}"


@pytest.mark.slow  # 15 s beside three others
def test_a_validation_and_a_compilation_may_take_long(run: Run) -> None:
    compiles = """
import torch._dynamo  # which takes long, too, where it is imported in the training
def backend(graph, inputs):
    time.sleep(3)
    return graph.forward
steps(60)
validate()
steps(30)
model.forward = torch.compile(model.forward, backend=backend)
steps(60)
"""
    outcome = run(TORCH.replace("WAIT", "time.sleep(5)") + compiles, no_progress_s=2.0)
    assert outcome.complete, outcome.detail
    assert outcome.knowledge.silences.compilation_s > 2.5
    assert outcome.knowledge.silences.validation_s > 4.5 > outcome.knowledge.silences.training_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "first"),
    [pytest.param(TAPES, 2, id="tapes"), pytest.param(FIT, 1, id="fit")],
)
def test_a_training_function_may_be_traced_anew_for_long(run: Run, loop: str, first: int) -> None:
    outcome = run(TENSORFLOW.replace("FIRST", str(first)) + loop, no_progress_s=2.0)
    assert outcome.complete, outcome.detail
    assert outcome.knowledge.silences.compilation_s > 3.5


@pytest.mark.slow  # 8 s beside three others
def test_what_compiles_unseen_in_a_training_may_take_as_long_as_its_start_did(run: Run) -> None:
    outcome = run(f"{REPORTS}\ntime.sleep(4)\nsteps(1, 30)\ntime.sleep(2.5)\nsteps(30, 60)")
    assert outcome.complete, outcome.detail
    assert outcome.knowledge.silences.training_s > 2.0


@pytest.mark.timed
def test_a_loop_that_hangs_is_ended_soon(run: Run) -> None:
    outcome = run(f"{REPORTS}\nsteps(1, 60)\nthreading.Event().wait()")
    assert outcome.kind is OutcomeKind.NO_PROGRESS
    told = r"no step for \d s, and its processes use no CPU time: they wait for something, at line \d+ of \w+\.py"
    assert re.fullmatch(told, outcome.detail), outcome.detail
    assert outcome.seconds < 25, "it has 60 s"


@pytest.mark.slow  # 10 s: two others keep its core busy
@pytest.mark.parametrize(
    ("body", "reason"), [("while True: pass", "crowded-out"), ("threading.Event().wait()", "no-progress")]
)
def test_what_stands_still_while_others_have_its_core_is_told_from_what_hangs(
    run: Run, body: str, reason: str
) -> None:
    cores, hogs = os.sched_getaffinity(0), list[subprocess.Popen[bytes]]()
    try:
        os.sched_setaffinity(0, {min(cores)})
        hogs += [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        outcome = run(f"{REPORTS}\nsteps(1, 60)\n{body}", knowledge=Knowledge(silences=Silences(training_s=0.1)))
    finally:
        os.sched_setaffinity(0, cores)
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert (outcome.kind, outcome.reason) == (OutcomeKind.NO_PROGRESS, reason), outcome.detail
    assert ("; others had 0." in outcome.detail) is (reason == "crowded-out")


@pytest.mark.slow  # 3 s beside three others
def test_a_loop_that_computes_for_long_between_two_steps_trains_on(run: Run) -> None:
    computes = "ended = time.monotonic() + 2\nwhile time.monotonic() < ended: pass"
    outcome = run(f"{REPORTS}\nsteps(1, 60)\n{computes}\nsteps(60, 90)")
    assert outcome.complete, outcome.detail
    assert outcome.knowledge.silences.training_s > 1.5


@pytest.mark.slow  # which limit is whose: unit/runner/test_silence.py; that it is kept: test_process_runner.py
def test_a_validation_that_never_ends_is_known_by_the_baselines(run: Run) -> None:
    script = TORCH.replace("WAIT", "while True: pass") + "steps(60)\nvalidate()"
    outcome = run(script, knowledge=Knowledge(silences=Silences(start_up_s=5.0, validation_s=0.3)))
    assert outcome.kind is OutcomeKind.NO_PROGRESS
    told = r"no end of its validation for 1 s, at line \d+ of \w+\.py(; others had .* meanwhile)?"
    assert re.fullmatch(told, outcome.detail), outcome.detail


@pytest.mark.slow  # 8 s beside three others
def test_a_start_up_that_computes_nothing_is_not_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.runner.silence.IDLE_S", 2.0)
    # As many seconds of a core as in the time that it stands for: what only waits looks around now and then.
    monkeypatch.setattr("tuner.runner.silence.IDLE_SHARE", IDLE_SHARE * IDLE_S / 2.0)
    outcome = run(f"{REPORTS}\nthreading.Event().wait()")
    assert outcome.kind is OutcomeKind.NO_PROGRESS
    assert outcome.detail.startswith("no first step for") and "use no CPU time" in outcome.detail
    assert outcome.seconds < 25, "it has 60 s"
    computing = f"{REPORTS}\nended = time.monotonic() + 4\nwhile time.monotonic() < ended: pass\nsteps(1, 60)"
    assert run(computing).complete


@pytest.mark.slow  # which limit is whose: unit/runner/test_silence.py
def test_what_the_baseline_took_to_start_is_allowed_to_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.runner.silence.START_UP_S", 1.0)
    slow = f"{REPORTS}\ntime.sleep(8)\nsteps(1, 60)"
    known = Knowledge(silences=Silences(start_up_s=2.0))
    assert run(slow, knowledge=known).complete
    quick = replace(known, silences=Silences(start_up_s=0.1))
    outcome = run(slow, knowledge=quick, trial_timeout_s=8.0)
    assert outcome.kind is OutcomeKind.NO_PROGRESS and "no first step" in outcome.detail
