"""The knob "donation": what a training step may use again is gone behind it, and what anything can read never is.

Each script is run as plain Python would, and with the knob: what it ends with is the same, bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.jax_regression import LOOP, MODEL, written
from support.jax_trial import watched

from tuner.child.jax.donation import BY_LIBRARY, BY_SCRIPT, CHECKED, NOTHING, REFUSED, DonationWatch
from tuner.child.jax.holders import HELD, OTHER_PARTS
from tuner.child.jax.rebinding import CAUGHT, OTHER_STATEMENT, READ_ELSEWHERE

STEPS = 8
HEAD = f"""
ROWS, STEPS = 240, {STEPS}
{MODEL}
def batches():
    for start in range(0, ROWS, ROWS // STEPS):
        yield X[start : start + 30], Y[start : start + 30]
"""


def ran(text: str, folder: Path, *, is_watched: bool = True, **given: Any) -> tuple[list[Any], Any]:
    """What a script ends with, and what was found of each function of it that trains."""
    run = written(HEAD + text, folder)
    if not is_watched:
        return run(), None
    with watched(**{"config": {"donation": True}, **given}) as trial:
        end = run()
        donation = trial.adapter._donation
        found = [each for each in donation.functions.values() if each.looks]
        trial.end()
    return end, (found, donation.why_not(), trial)


def donated(text: str, folder: Path) -> tuple[int, str]:
    """How many calls have donated, and why others haven't. What the script ends with has to be what it is without."""
    expected, _ = ran(text, folder, is_watched=False)
    end, (found, why, _) = ran(text, folder)
    assert [leaf.tobytes() for leaf in end] == [leaf.tobytes() for leaf in expected]
    return sum(each.donated for each in found), why


IN_FUNCTIONS = """
def epoch(params, data):
    for x, y in data:
        params, loss = step(params, x, y)
    return params, loss
data = list(batches())
for half in (data[:4], data[4:]):
    params, loss = epoch(params, half)
"""
STATE = """
import dataclasses
@functools.partial(jax.tree_util.register_dataclass, data_fields=["params", "number", "key"], meta_fields=[])
@dataclasses.dataclass
class State:
    params: dict
    number: int
    key: jax.Array
@jax.jit
def step(state, x, y):
    params, loss = plain(state.params, x + jax.random.normal(state.key, ()), y)
    return State(params, state.number + 1, jax.random.split(state.key)[0]), {"loss": loss}
state = State(params, 0, jax.random.key(0))
for x, y in batches():
    state, metrics = step(state, x=x, y=y)
params, loss = state.params, metrics["loss"]
"""
SEVERAL_ARGUMENTS = """
@functools.partial(jax.jit, static_argnums=0, static_argnames="scale")
def step(rate, momentum, params, x, y, *, scale):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    momentum = jax.tree_util.tree_map(lambda m, g: 0.9 * m + scale * g, momentum, gradients)
    return loss, jax.tree_util.tree_map(lambda p, m: p - rate * m, params, momentum), momentum
momentum = jax.tree_util.tree_map(jnp.zeros_like, params)
for x, y in batches():
    loss, params, momentum = step(0.01, momentum, y=y, x=x, params=params, scale=1.0)
"""
OF_TURNS = """
@jax.jit
def other(params, x, y):
    return plain(params, 2 * x, y)
for number, (x, y) in enumerate(batches()):
    if number % 2:
        params, loss = other(params, x, y)
    else:
        params, loss = step(params, x, y)
"""
APART = """
gradient = jax.jit(jax.value_and_grad(loss_of))
@jax.jit
def apply(params, gradients):
    jax.grad(lambda x: x)(1.0)  # as an update of optax' is, seen to train
    return descend(params, gradients)
for x, y in batches():
    loss, gradients = gradient(params, x, y)
    params = apply(params, gradients)
"""
AN_AVERAGE = """
average = params
for x, y in batches():
    params, loss = step(params, x, y)
    average = jax.tree_util.tree_map(lambda a, p: 0.9 * a + 0.1 * p, average, params)
kept.append(average)
"""
SCORED = """
score = jax.jit(loss_of)
for x, y in batches():
    params, loss = step(params, x, y)
    kept.append(score(params, X, Y))
    assert sum(score(params, X[:9], Y[:9]) for _ in range(2)) > 0
"""


@pytest.mark.parametrize(
    ("text", "least"),
    [
        (LOOP, STEPS - 1),  # what the first one is given no step gave
        (IN_FUNCTIONS, STEPS - 2),  # the script holds the first one's of each epoch
        pytest.param(STATE, STEPS - 1, marks=pytest.mark.slow),
        pytest.param(SEVERAL_ARGUMENTS, STEPS - 1, marks=pytest.mark.slow),
        pytest.param(OF_TURNS, STEPS - 2, marks=pytest.mark.slow),
        pytest.param(APART, STEPS - 1, marks=pytest.mark.slow),
        pytest.param(AN_AVERAGE, STEPS - 1, marks=pytest.mark.slow),
        pytest.param(SCORED, STEPS - 1, marks=pytest.mark.slow),
        pytest.param(LOOP.replace("step(", "jax.jit(plain)("), STEPS - 1, marks=pytest.mark.slow),
    ],
    ids=["loop", "epochs", "state", "arguments", "two functions", "gradients apart", "average", "scores", "made anew"],
)
def test_state_that_nothing_reads_again_is_donated(text: str, least: int, tmp_path: Path) -> None:
    assert donated(text, tmp_path)[0] == least


BEST = """
for number, (x, y) in enumerate(batches()):
    params, loss = step(params, x, y)
    if number % 3 == 1:
        best = params
kept.append(best)
"""
BEST_PART = BEST.replace("best = params", "best = params['b']")
HISTORY = LOOP + "    kept.append(params)\n"
BACK = """
for x, y in batches():
    new, loss = step(params, x, y)
    if loss < 1e9:
        params = new
"""
TWICE = """
for x, y in batches():
    ahead, _ = step(params, x, y)
    params, loss = step(params, x, y)
    kept.append(ahead)
"""
VIEWS = LOOP + "    kept.append(np.asarray(params['w']))\n"
DLPACK = LOOP + "    kept.append(np.from_dlpack(params['w']))\n"
PUT = LOOP + "    kept.append(jax.device_put(params, jax.devices()[0]))\n"
PUT_BY_ITSELF = LOOP + "    kept.append(params['w'].to_device(jax.devices()[0]))\n"
SHARDS = LOOP + "    kept.append(params['w'].addressable_shards[0].data)\n"
DATA = LOOP + "    kept.append(params['w'].addressable_data(0))\n"
MADE_OF = LOOP + """
    w = params["w"]
    kept.append(jax.make_array_from_single_device_arrays(w.shape, w.sharding, [w]))
    del w
"""
RESHAPED = LOOP + "    kept.append(params['w'].reshape(2, 2))\n"
STOPPED = LOOP + "    kept.append(jax.lax.stop_gradient(params))\n"
PASSED_ON = """
@jax.jit
def step(params, x, y):
    new, loss = plain(params, x, y)
    return {**new, "b": params["b"]}, loss, params["w"], new["w"], new
first = params
for x, y in batches():
    params, loss, before, behind, again = step(params, x, y)
    kept.extend([before, behind, again])
kept.append(first)
"""


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        (BEST, 5, 5), (BEST_PART, 5, 5), (HISTORY, 0, 0), (BACK, 0, 0), (TWICE, 0, STEPS - 1), (VIEWS, 0, STEPS - 1),
        (DLPACK, 0, STEPS - 1), (PUT, 0, 0), (PUT_BY_ITSELF, 0, 0), (SHARDS, 0, 0), (DATA, 0, 0), (MADE_OF, 0, 0),
        (RESHAPED, 0, STEPS - 1), (STOPPED, 0, STEPS - 1), (PASSED_ON, 0, STEPS - 1),
    ],
    ids=["best", "best part", "history", "back", "twice", "views", "dlpack", "put", "to device", "shards", "data",
         "made of", "reshaped", "stopped", "passed on"],
)  # fmt: skip
def test_what_a_script_keeps_stays_as_it_is(text: str, least: int, most: int, tmp_path: Path) -> None:
    """Each ends with what it has kept, and would raise where that was given away."""
    assert least <= donated(text, tmp_path)[0] <= most


ELSEWHERE = "def save():\n    return params\n" + LOOP
IN_TRY = """
try:
    for x, y in batches():
        params, loss = step(params, x, y)
except KeyboardInterrupt:
    pass
"""
OF_NUMBERS = """
@jax.jit
def step(state, x, y):
    new, loss = plain(state[0], x, y)
    return (new, state[1]), loss
state = (params, 0)
for number, (x, y) in enumerate(batches()):
    state = (state[0], number)
    state, loss = step(state, x, y)
params = state[0]
"""
PARTIAL = "step = functools.partial(step, y=Y[:30])\n" + LOOP.replace("step(params, x, y)", "step(params, x)")
BY_ITSELF = "step = jax.jit(plain, donate_argnums=0)\nparams = jax.tree_util.tree_map(jnp.copy, params)\n" + LOOP
ANEW = LOOP.replace("params, loss", "params = jax.tree_util.tree_map(jnp.copy, params)\n    params, loss")
LOWERED = "step = step.lower(params, X[:30], Y[:30]).compile()\n" + LOOP
CHECKING = "jax.config.update('jax_debug_nans', True)\n" + LOOP + "jax.config.update('jax_debug_nans', False)\n"

BY_ANOTHER = """
names = {}
source = "def run(call, *given):\\n    return call(*given)\\n"
exec(compile(source, np.__file__, "exec"), names)
for x, y in batches():
    params, loss = names["run"](step, params, x, y)
"""
WITH_NOTHING = """
step = jax.jit(lambda nothing, params, x, y: plain(params, x, y), donate_argnums=0)
""" + BY_ANOTHER.replace("(step, ", "(step, None, ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HISTORY, HELD), (BACK, OTHER_STATEMENT), (ELSEWHERE, READ_ELSEWHERE.format("params")), (IN_TRY, CAUGHT),
        (OF_NUMBERS, OTHER_PARTS), (PARTIAL, OTHER_STATEMENT), (BY_ITSELF, BY_SCRIPT), (ANEW, NOTHING),
        (LOWERED, NOTHING), (CHECKING, CHECKED), (BY_ANOTHER, BY_LIBRARY), (WITH_NOTHING, BY_LIBRARY),
    ],
    ids=["history", "back", "a function", "caught", "numbers", "partial", "by itself", "anew", "lowered", "checked",
         "a library", "donates nothing"],
)  # fmt: skip
def test_why_nothing_is_donated_is_told(text: str, why: str, tmp_path: Path) -> None:
    assert donated(text, tmp_path) == (0, why)


def test_the_script_as_written_tells_whether_it_may(tmp_path: Path) -> None:
    """It donates nothing; a small state is computed anew sooner than it is looked at."""
    large = "params = {'w': jnp.zeros(4), 'b': [jnp.zeros(())], 'unused': jnp.zeros(300_000)}\n" + LOOP
    _, (found, _, trial) = ran(large, tmp_path, config={})
    facts = trial.log.of("facts")[0]
    assert facts["as_written"]["donation"] is False and "donation" not in facts["left_out"]
    assert [each.donated for each in found] == [0]
    _, (_, _, trial) = ran(LOOP, tmp_path, config={})
    assert trial.log.of("facts")[0]["left_out"]["donation"].startswith("the training step's state takes 1 KiB")
    for text, why in ((HISTORY, HELD), (BY_ITSELF, BY_SCRIPT)):
        _, (_, _, trial) = ran(text, tmp_path, config={})
        assert trial.log.of("facts")[0]["left_out"]["donation"] == why


ANOTHER_SHAPE = """
@jax.jit
def first(params, x, y):
    new, loss = plain(params, x, y)
    return new, new["w"][:3]
@jax.jit
def second(params, part, x, y):
    new, loss = plain(params, x, y)
    return new, part.sum(), loss
for x, y in batches():
    params, part = first(params, x, y)
    params, part, loss = second(params, part, x, y)
"""


def test_what_no_result_could_lie_in_is_kept(tmp_path: Path) -> None:
    """JAX would warn of it."""
    assert donated(ANOTHER_SHAPE, tmp_path)[0] == 2 * STEPS - 2


def test_a_step_that_jax_refuses_to_donate_for_goes_on_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """When it is compiled so, and when it is called; what is said of the script's own error isn't lost."""
    text = "import inspect\nplain.__signature__ = inspect.Signature()\nstep = jax.jit(plain)\n" + LOOP
    count, why = donated(text, tmp_path)
    assert count == 0 and why.startswith(REFUSED.format("")) and "donate_argnums" in why

    def refusing(**options: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            raise ValueError("external references")

        return call

    watch_of = DonationWatch.watch_of
    def refused(watch: DonationWatch, calls: Any, make: Any, options: Any) -> Any:
        return watch_of(watch, calls, refusing, options)

    monkeypatch.setattr(DonationWatch, "watch_of", refused)
    assert donated(LOOP, tmp_path) == (0, REFUSED.format("external references"))


def test_evidence_is_that_the_arrays_are_gone(tmp_path: Path) -> None:
    for text, evidence in ((LOOP, "verified"), (HISTORY, "contradicted"), (ANEW, "not applicable")):
        _, (_, _, trial) = ran(text, tmp_path)
        assert trial.evidence("donation")[0] == evidence, trial.log.of("knob")
    _, (_, _, trial) = ran(LOOP, tmp_path, config={"donation": False})
    assert trial.evidence("donation") == ("verified", "")
