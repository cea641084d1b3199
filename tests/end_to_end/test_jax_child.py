"""Loops that train with JAX alone, in a real child: steps, samples, losses, compilations, and what can't be studied."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.jax_scripts import HEAD, LOOP, SCRIPTS
from support.rates import measured

Run = Callable[..., Any]
Write = Callable[..., Path]
WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.0}
FAST = ("jitted",)
KINDS = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in SCRIPTS]
LATE = {"nothing jitted", "gradients jitted, updates by hand"}
"""Where no update is seen a step ends as the next gradient begins: the last one isn't counted."""


def own_count(ran: Any) -> int:
    """The samples that the script trained on, as it says."""
    return int(re.findall(r"^trained on (\d+)$", ran.output, re.MULTILINE)[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_of_jax_is_counted_and_trains_as_under_plain_python(
    kind: str, run_child: Run, write_script: Write
) -> None:
    """Its losses are the same to the last bit, and those that it shows are told."""
    script = write_script(SCRIPTS[kind])
    plain = subprocess.run(
        [sys.executable, str(script), "23"], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, timeout=240, check=True,
    )  # fmt: skip
    ran = run_child(script, argv=("23",), window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert [note["text"] for note in ran.of("note")] == []
    late = 20 if kind in LATE else 0
    assert (ran.facts["framework"], ran.facts["unit"]) == ("jax", "samples"), ran.facts["remarks"]
    assert (ran.facts["steps"], ran.facts["samples"]) == (23 - late // 20, own_count(ran) - late)
    losses = re.findall(r"^loss (\S+)$", plain.stdout, re.MULTILINE)
    assert re.findall(r"^loss (\S+)$", ran.output, re.MULTILINE) == losses
    told = {float(record["value"]).hex() for record in ran.of("loss")}
    assert told <= {float.fromhex(loss).hex() for loss in losses}
    assert len(told) > 10 or not losses


WITH_AN_OPTION = SCRIPTS["jitted"].replace(
    "STEPS, BATCH = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20",
    "import argparse\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--batch-size', type=int, default=20)\nBATCH, STEPS = parser.parse_args().batch_size, 30",
)
KNOWN = {"framework": "jax", "unit": "samples", "as_written": {"batch_size": 20}}


@pytest.mark.slow  # 4 s beside three others
def test_a_batch_size_is_an_option_and_a_short_last_batch_is_short(run_child: Run, write_script: Write) -> None:
    script = write_script(WITH_AN_OPTION)
    ran = run_child(script, window=WHOLE)
    assert ran.facts["as_written"]["batch_size"] == 20 and ran.facts["options"] == {"batch_size": "batch_size"}
    by_option = {**KNOWN, "options": {"batch_size": "batch_size"}}
    ran = run_child(script, {"batch_size": 35}, knowledge=by_option, window=WHOLE)
    assert ran.evidence("batch_size") == "verified", ran.of("knob")
    assert ran.facts["samples"] == own_count(ran) == 1000


@pytest.mark.slow
def test_a_batch_size_may_be_stated(run_child: Run, write_script: Write) -> None:
    script, places = write_script(WITH_AN_OPTION), {"placeholders": ["batch_size"]}
    ran = run_child(script, knowledge=places, argv=("--batch-size", "20"), window=WHOLE)
    assert ran.facts["unit"] == "samples" and ran.facts["row_places"], ran.facts["remarks"]
    bound = {**KNOWN, **places, "row_places": ran.facts["row_places"]}
    ran = run_child(script, {"batch_size": 50}, knowledge=bound, argv=("--batch-size", "50"), window=WHOLE)
    assert ran.evidence("batch_size") == "verified", ran.of("knob")
    assert ran.facts["samples"] == own_count(ran) == 1500
    ran = run_child(script, {"batch_size": 700}, knowledge=bound, argv=("--batch-size", "700"), window=WHOLE)
    assert ran.evidence("batch_size") == "contradicted", ran.of("knob")


SCANNED = HEAD + """
@jax.jit
def several(params, xs, ys):
    def one(params, batch):
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        return descend(params, gradients), loss
    return lax.scan(one, params, (xs, ys))
for _ in range(10):
    params, losses = several(params, X.reshape(5, 20, 8), Y.reshape(5, 20))
"""
CLOSED_OVER = HEAD + """
x, y = jnp.asarray(X[:20]), jnp.asarray(Y[:20])
@jax.jit
def update(params):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss
for _ in range(10):
    params, loss = update(params)
"""
WHOLE_DATA = HEAD + """
x, y = jnp.asarray(X), jnp.asarray(Y)
@jax.jit
def update(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss
for _ in range(10):
    params, loss = update(params, x, y)
"""


@pytest.mark.slow  # unit/child/test_jax_steps.py, test_jax_rows.py
@pytest.mark.parametrize(
    ("text", "counted", "says"),
    [
        (SCANNED, ("steps", 50, 0), "the gradient is taken in a loop of JAX's"),
        (CLOSED_OVER, ("steps", 10, 0), "what a step is given holds no batch"),
        (WHOLE_DATA, ("samples", 10, 1000), ""),
    ],
    ids=["in a scan", "closed over", "all data in each step"],
)
def test_what_cannot_be_counted_is_said(
    run_child: Run, write_script: Write, text: str, counted: tuple[str, int, int], says: str
) -> None:
    ran = run_child(write_script(text), argv=("1",), window=WHOLE)
    assert ran.returncode == 0, ran.output
    found = (ran.facts["unit"], ran.facts["steps"], ran.facts["samples"])
    assert found == counted, ran.facts["remarks"]
    assert [remark for remark in ran.facts["remarks"] if says in remark] or not says


GAN = HEAD + """
@jax.jit
def discriminate(params, x, y):
    return descend(params, jax.grad(loss_of)(params, x, y))
@jax.jit
def generate(params, noise):
    return descend(params, jax.grad(loss_of)(params, noise, jnp.zeros(len(noise), int)))
other = jax.tree_util.tree_map(jnp.copy, params)
""" + LOOP.replace("STEP", "params = discriminate(params, x, y); other = generate(other, 2 * X[:16])")


@pytest.mark.slow
def test_of_two_that_take_turns_the_first_one_counts(run_child: Run, write_script: Write) -> None:
    ran = run_child(write_script(GAN), argv=("30",), window=WHOLE)
    assert (ran.facts["unit"], ran.facts["steps"], ran.facts["samples"]) == ("samples", 30, own_count(ran))


RETRACED = HEAD + """
@functools.partial(jax.jit, static_argnums=1)
def update(params, number, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss
""" + LOOP.replace("STEP", "params, done_with = update(params, trained, x, y)")


@pytest.mark.slow
def test_a_step_that_is_traced_anew_is_told_of(run_child: Run, write_script: Write) -> None:
    ran = run_child(write_script(RETRACED), argv=("20",), window=WHOLE)
    assert ran.facts["retraces"] == 19
    assert any(remark.startswith("the training step was traced anew 19 times") for remark in ran.facts["remarks"])
    (compiled,) = ran.of("compile")
    assert compiled["graphs"] >= 20 and compiled["seconds"] > 0
    pauses = [(record["pause"], record["begins"]) for record in ran.of("pause")]
    assert pauses.count(("compilation", True)) == pauses.count(("compilation", False)) == 20


@pytest.mark.slow  # unit/child/test_jax_compiling.py
def test_what_is_compiled_beside_the_step_again_and_again_is_told_of(run_child: Run, write_script: Write) -> None:
    """A step of one shape, and with each some work on data of another length."""
    script = SCRIPTS["jitted"].replace("trained += len(x)", "trained += len(x); jnp.ones(trained).sum()")
    ran = run_child(write_script(script), argv=("20",), window=WHOLE)
    assert ran.facts["retraces"] == 0
    [told] = [remark for remark in ran.facts["remarks"] if "after the first 10 steps" in remark]
    assert told.startswith("XLA compiled ") and int(told.split()[2]) >= 9


VALIDATED = HEAD + """
import time
@jax.jit
def update(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss
score = jax.jit(loss_of)
def validate():
    time.sleep(0.8)
    return score(params, X, Y)
""" + LOOP.replace("STEP", """params, done_with = update(params, x, y)
        time.sleep(0.01)
        if trained % 300 == 0:
            score(params, X, Y); validate()""")


@pytest.mark.slow  # unit/child/test_jax_eager.py, test_jax_sums.py, in one process
def test_validation_is_set_apart(run_child: Run, write_script: Write) -> None:
    """Each validation takes as long as eighty steps."""
    ran = run_child(write_script(VALIDATED), argv=("75",), window={**WHOLE, "block_s": 0.05})
    apart = [block for block in ran.of("block") if block["flagged"]]
    assert sum(block["seconds"] for block in apart) > 0.8 * (len(apart) - 1) > 2
    trained = [block for block in ran.of("block") if not block["flagged"]]
    slowest = 20 / max(block["seconds"] / block["steps"] for block in trained)
    assert slowest > 20 / 0.8, "no block of training holds a validation"


UNSEEN = HEAD + """
scores = jax.pmap(lambda params, x: x @ params["w1"], in_axes=(None, 0))
@jax.jit
def update(params, x, y):
    loss, pulled = jax.vjp(lambda params: loss_of(params, x, y), params)
    return descend(params, pulled(jnp.ones(()))[0]), loss
for x, y in batches():
    params, loss = update(params, x, y)
"""


@pytest.mark.slow
def test_a_script_without_a_step_is_told_what_was_looked_for(run_child: Run, write_script: Write) -> None:
    """Not of ``jax.pmap``, which it has and doesn't train by."""
    ran = run_child(write_script(UNSEEN), argv=("10",), window=WHOLE)
    (failure,) = ran.of("failure")
    assert failure["reason"] == "no-step"
    assert "looked for were jax.grad and jax.value_and_grad" in failure["detail"]


@pytest.mark.slow
def test_threads_that_a_flag_keeps_idle_are_not_verified(run_child: Run, write_script: Write) -> None:
    flag = "import os\nos.environ['XLA_FLAGS'] = '--xla_cpu_multi_thread_eigen=false'\n"
    script = write_script(flag + SCRIPTS["jitted"])
    ran = run_child(script, {"threads": 2}, argv=("10",), window=WHOLE)
    assert ran.evidence("threads") == "unverifiable"
    assert "--xla_cpu_multi_thread_eigen=false" in ran.of("knob")[-1]["reason"]


WRONG = HEAD + """
@jax.jit
def update(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y[:, None])
    return descend(params, gradients), loss + unknown
params, loss = update(params, X, Y)
"""


def test_an_error_in_a_step_is_the_script_s_own(run_child: Run, write_script: Write) -> None:
    """It is raised as under plain Python, with no line of ours in it."""
    script = write_script(WRONG)
    ran = run_child(script, argv=("1",))
    assert ran.returncode == 1
    (raised,) = ran.of("exception")
    assert raised["type"] == "NameError" and "unknown" in raised["text"]
    assert "tuner/child" not in raised["traceback"]


SLOW = HEAD + """
import time
wide = drawn_once(700, 700)
@jax.jit
def update(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    worked = lax.fori_loop(0, 4, lambda number, made: jnp.tanh(made @ wide), wide)
    return descend(params, gradients), loss + 0.0 * worked.sum()
began, seen, since = None, 0, 0
try:
    while True:
        params, loss = update(params, X[:20], Y[:20])
        seen += 20
        if seen % 200 == 0:
            loss.block_until_ready()
            if began is None:
                began, since = time.perf_counter(), seen
            print("rate", (seen - since) / (time.perf_counter() - began + 1e-9), flush=True)
except BaseException:
    raise
"""


@pytest.mark.slow  # contract/test_jax_waits.py, in one process
@pytest.mark.timed
def test_the_rate_is_that_of_what_was_computed_and_not_of_what_was_given(run_child: Run, write_script: Write) -> None:
    """JAX gives results before they are there: without a wait, a step would last as long as its launch."""
    ran = run_child(write_script(SLOW), argv=("1",), window={"max_s": 3.0, "min_s": 3.0, "block_s": 0.2})
    own = float(re.findall(r"^rate (\S+)$", ran.output, re.MULTILINE)[-1])
    assert measured(ran).rate == pytest.approx(own, rel=0.15), ran.output[-500:]


KERAS_LOOP = """
    import os
    os.environ["KERAS_BACKEND"] = "jax"
    import jax, keras, numpy
    x = numpy.random.default_rng(0).random((100, 4), dtype="float32")
    y = x.sum(1, keepdims=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    def loss_of(trainable, others, x, y):
        made, others = model.stateless_call(trainable, others, x)
        return ((made - y) ** 2).mean(), others
    @jax.jit
    def step(state, x, y):
        trainable, others, held = state
        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable, others, x, y)
        trainable, held = optimizer.stateless_apply(held, gradients, trainable)
        return loss, (trainable, others, held)
    state = tuple([v.value for v in each] for each in (
        model.trainable_variables, model.non_trainable_variables, optimizer.variables))
    for epoch in range(4):
        for start in range(0, 100, 20):
            loss, state = step(state, x[start : start + 20], y[start : start + 20])
"""


@pytest.mark.slow
def test_a_loop_around_a_keras_model_is_counted(run_child: Run, write_script: Write) -> None:
    ran = run_child(write_script(KERAS_LOOP), window=WHOLE)
    assert ran.returncode == 0, ran.output
    found = (ran.facts["framework"], ran.facts["unit"], ran.facts["steps"], ran.facts["samples"])
    assert found == ("jax", "samples", 20, 400), ran.facts["remarks"]


@pytest.mark.slow  # under autotune run: below
@pytest.mark.parametrize(
    ("config", "evidence"),
    [
        ({"threads": 1}, {"threads": "verified"}),
        ({"async_dispatch": False}, {"async_dispatch": "verified"}),
        (
            {"threads": 2, "async_dispatch": True}, {"threads": "verified", "async_dispatch": "verified"}
        ),
    ],
)
def test_knobs_of_the_client_take_effect_and_change_no_loss(
    run_child: Run, write_script: Write, config: dict[str, Any], evidence: dict[str, str]
) -> None:
    script = write_script(SCRIPTS["jitted"])
    written = run_child(script, argv=("12",), window=WHOLE)
    assert written.facts["as_written"]["async_dispatch"] is True
    assert written.facts["as_written"]["threads"] >= 1
    ran = run_child(script, config, argv=("12",), window=WHOLE, knowledge={"framework": "jax", "unit": "samples"})
    assert {knob: ran.evidence(knob) for knob in config} == evidence, ran.of("knob")
    losses = [re.findall(r"^loss (\S+)$", each.output, re.MULTILINE) for each in (written, ran)]
    assert losses[0] == losses[1] and len(losses[0]) == 12


@pytest.mark.slow
def test_a_script_that_chooses_its_dispatch_after_the_client_was_made_is_as_it_was(
    run_child: Run, write_script: Write
) -> None:
    """What counts is what the client was made with."""
    chosen = "import jax\njax.config.update('jax_cpu_enable_async_dispatch', False)\nimport "
    text = SCRIPTS["jitted"].replace("import jax, ", chosen, 1)
    ran = run_child(write_script(text), argv=("5",), window=WHOLE)
    assert ran.facts["as_written"]["async_dispatch"] is False


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize("kind", ["jitted", pytest.param("nothing jitted", marks=pytest.mark.slow)])
def test_an_applied_run_tells_what_is_in_effect_and_trains_the_same(
    kind: str, run_child: Run, write_script: Write
) -> None:
    script = write_script(SCRIPTS[kind])
    ran = run_child(script, {"threads": 1, "async_dispatch": False}, argv=("25",), mode="apply")
    assert ran.returncode == 0, ran.output
    assert "autotune: after 20 steps in effect: threads, async_dispatch" in ran.output.splitlines()
    assert own_count(ran) == 500


@pytest.mark.slow  # unit/child/test_jax_products.py, in one process
@pytest.mark.parametrize("mode", ["trial", pytest.param("apply", marks=pytest.mark.slow)])
def test_matrix_products_are_asked_for_another_format(mode: str, run_child: Run, write_script: Write) -> None:
    """A processor computes them all the same: what is told is what JAX compiles."""
    script = write_script(SCRIPTS["jitted"])
    given = {"window": WHOLE} if mode == "trial" else {"mode": mode}
    ran = run_child(script, {"precision": "bf16"}, argv=("25",), knowledge={"framework": "jax"}, **given)
    assert ran.returncode == 0, ran.output
    if mode == "trial":
        assert ran.evidence("precision") == "verified", ran.of("knob")
    else:
        assert re.search(r"^autotune: after 20 steps in effect: precision", ran.output, re.MULTILINE), ran.output
