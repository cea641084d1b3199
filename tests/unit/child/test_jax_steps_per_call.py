"""The knob "steps_per_call": calls of a training step run together, and who reads between them gets what is so.

Each script is run as plain Python would, and with the knob: what it ends with is the same.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.in_process import ENDLESS
from support.jax_here import jax
from support.jax_regression import IN_A_LIBRARY, LOOP, MODEL, written
from support.jax_trial import watched

from tuner.child.jax.plans import CONVOLVES, EFFECTS, KEYS, SETTING
from tuner.child.jax.several import BY_LIBRARY, BY_SCRIPT, CHECKED, KEPT, NOTHING, READ, UNLIKE

SLOW = pytest.mark.slow
HEAD = f"""
import copy, pickle, threading
ROWS, loss = 2400, None
{MODEL}
def batches(size=24):
    for start in range(0, ROWS - size + 1, size):
        yield X[start : start + size], Y[start : start + size]
"""


def ran(text: str, folder: Path, *, is_watched: bool = True, **given: Any) -> tuple[list[Any], Any]:
    """What a script ends with, and what became of its calls."""
    run = written(HEAD + text, folder)
    if not is_watched:
        return run(), None
    with watched(**{"config": {"steps_per_call": 4}, "mode": "apply", **given}) as trial:
        end = run()
        several = trial.adapter._several
        if trial.session.measuring:
            trial.end()
    return end, (several, trial)


def counted(text: str, folder: Path) -> tuple[int, int, int, str]:
    """How many calls ran together, how many alone, how many states were read later, and why no more waited."""
    expected, _ = ran(text, folder, is_watched=False)
    end, (several, _) = ran(text, folder)
    assert len(end) == len(expected)
    for leaf, as_written in zip(end, expected, strict=True):
        numpy.testing.assert_allclose(leaf, as_written, rtol=2e-6, atol=1e-7)
    assert not several.counted.failed
    return several.counted.together, several.counted.alone, several.counted.again, several.why



def test_calls_whose_results_nobody_reads_run_together(tmp_path: Path) -> None:
    """The first three run as written, and one is left over at the end."""
    assert counted(LOOP, tmp_path) == (96, 1, 0, NOTHING)


AN_ARRAY = "an array that is the same within an epoch"
TOGETHER = {
    "losses are read at the end": LOOP + "    kept.append(loss)",
    "given by name": "for x, y in batches():\n    params, loss = step(y=y, params=params, x=x)",
    "its arrays are used again": """
own = [np.empty((24, 4), "float32"), np.empty(24, "float32")]
for x, y in batches():
    own[0][:], own[1][:] = x, y
    params, loss = step(params, *own)
    if type(loss).__name__ == "ArrayImpl":  # JAX itself may read them where they lie, until it is through
        loss.block_until_ready()
    own[0][:] = own[1][:] = np.nan
""",
    "put on the device": "for x, y in batches():\n    params, loss = step(params, jax.device_put(x), jnp.asarray(y))",
    "float64": "for x, y in batches():\n    params, loss = step(params, x.astype('float64'), y)",
    "the same data in each call": """
x, y = jnp.asarray(X), jnp.asarray(Y)
for _ in range(100):
    params, loss = step(params, x, y)
""",
    "keys for random numbers": """
@jax.jit
def step(params, key, x, y):
    key, own = jax.random.split(key)
    return *plain(params, x + 0.1 * jax.random.normal(own, x.shape), y), key
key = jax.random.PRNGKey(0)
for x, y in batches():
    params, loss, key = step(params, key, x, y)
""",
    "a new key of each call": """
@jax.jit
def step(params, key, x, y):
    return plain(params, x + 0.1 * jax.random.normal(key, x.shape), y)
for (x, y), key in zip(batches(), jax.random.split(jax.random.key(0), 100)):
    params, loss = step(params, key, x, y)
""",
    "settings and numbers": """
@functools.partial(jax.jit, static_argnums=0, static_argnames="scale")
def step(loss_of, params, x, y, number, rate, is_late, scale=1):
    types.update([(number + x[0, 0].astype("bfloat16")).dtype.name, (rate * x[0, 0].astype("float16")).dtype.name])
    loss, slopes = jax.value_and_grad(loss_of)(params, x, y)
    rate = jnp.where(is_late, rate, rate / 2) * scale / (1 + number)
    return jax.tree_util.tree_map(lambda p, g: p - rate * g, params, slopes), loss
types = set()
for number, (x, y) in enumerate(batches()):
    params, loss = step(loss_of, params, x, y, number, 0.5 if number < 60 else 0.25, number > 30, scale=2)
kept = [np.array(len(types)), *(np.array(name in types) for name in ("bfloat16", "float16"))]
""",
    AN_ARRAY: """
@jax.jit
def step(params, rate, x, y):
    loss, slopes = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, params, slopes), loss
for epoch in range(4):
    rate = jnp.asarray(0.01 / (epoch + 1))
    for x, y in batches(96):
        params, loss = step(params, rate, x, y)
""",
    "an object's state": """
class Trainer:
    def __init__(self):
        self.params, self.loss = params, None
        self.step = jax.jit(plain)
    def fit(self):
        for x, y in batches():
            self.params, self.loss = self.step(self.params, x, y)
trainer = Trainer()
trainer.fit()
params, loss = trainer.params, trainer.loss
""",
    "two epochs": (LOOP + "kept.append(float(loss))") * 2,
}


ALWAYS = {"settings and numbers", AN_ARRAY}


@pytest.mark.parametrize("name", [pytest.param(it, marks=[] if it in ALWAYS else SLOW) for it in TOGETHER])
def test_calls_run_together_where(name: str, tmp_path: Path) -> None:
    together, _, again, _ = counted(TOGETHER[name], tmp_path)
    assert together >= 92 and again == 0


READS = {
    "float": "kept.append(float(loss))",
    "a condition": "if loss < 1e-9: break",
    "NumPy": "kept.append(np.asarray(params['w']).copy())",
    "print": "print(f'{loss:.3f}')",
    "waits": "jax.block_until_ready((params, loss))",
    "its method waits": "loss.block_until_ready()",
    "an average of the state": "params = jax.tree.map(lambda p: p * 0.999, params)",
    "a compiled evaluation": "kept.append(evaluate(params))",
    "jnp": "kept.append(jnp.mean(jnp.stack([loss, loss])))",
    "a gradient": "kept.append(jax.grad(loss_of)(params, x, y)['w'])",
    "a closure": "kept.append(jax.jit(lambda x: x @ params['w'])(x).sum())",
    "pickle": "params = pickle.loads(pickle.dumps(params))",
    "a copy": "params = copy.deepcopy(params)",
    "device_get": "kept.append(jax.device_get(params)['w'])",
    "put on a device": "kept.append(jax.device_put(params, jax.devices()[0])['w'])",
    "a thread": "it = threading.Thread(target=lambda: kept.append(float(loss))); it.start(); it.join()",
}
FEW = [pytest.param(it, marks=[] if it in {"put on a device", "waits"} else SLOW) for it in READS]
EVALUATE = "evaluate = jax.jit(lambda params: loss_of(params, X, Y))\n"


@pytest.mark.parametrize("name", FEW)
def test_what_is_read_after_each_step_is_so(name: str, tmp_path: Path) -> None:
    """None runs together, and after some time none waits any more."""
    together, alone, again, why = counted(EVALUATE + LOOP + "    " + READS[name], tmp_path)
    assert (together, again) == (0, 0)
    assert (64 <= alone <= 68 and why == READ) or (alone == 0 and why == NOTHING)  # it never goes on from a result


@SLOW
@pytest.mark.parametrize("name", FEW)
def test_what_is_read_now_and_then_is_so(name: str, tmp_path: Path) -> None:
    """Every tenth step: four, four and two."""
    text = EVALUATE + LOOP.replace("for x, y in", "for number, (x, y) in enumerate(")
    text = text.replace("batches():", "batches()):") + f"    if number % 10 == 5:\n        {READS[name]}"
    together, alone, again, _ = counted(text, tmp_path)
    assert together >= 72 and alone <= 26 and again == 0


def test_states_that_are_kept_are_what_they_were(tmp_path: Path) -> None:
    """They are no result of the call that takes all steps, and are computed again; where that is often, none waits."""
    keeps = "for number, (x, y) in enumerate(batches()):\n    params, loss = step(params, x, y)\n"
    together, _, again, why = counted(keeps + "    if number in (20, 43, 66): kept.append(params)", tmp_path)
    assert together >= 92 and 0 < again <= 3 * 3 and why == NOTHING
    often = keeps + "    kept.append(params)\n    if number % 8 == 0: end = [np.asarray(each['w']) for each in kept]"
    assert counted(often, tmp_path)[3] == KEPT


def test_an_error_in_the_loop_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    text = """
for number, (x, y) in enumerate(batches()):
    try:
        params, loss = step(params, x if number % 7 else x[:, :3], y)
    except TypeError:
        kept.append(params["w"])
"""
    assert counted(text, tmp_path)[0] > 0


@SLOW
def test_a_number_that_has_no_room_is_the_scripts_error(tmp_path: Path) -> None:
    text = """
step = jax.jit(lambda p, x, y, n: plain(p, x, y + 0 * n))
for number, (x, y) in enumerate(batches()):
    try:
        params, loss = step(params, x, y, number if number % 7 else 1 << 40)
    except OverflowError:
        kept.append(params["w"])
"""
    assert counted(text, tmp_path)[0] > 0


def test_calls_that_are_given_other_than_those_before_run_as_written(tmp_path: Path) -> None:
    """A learning rate of each epoch that the step is compiled for: most steps run one by one, and are told so."""
    text = """
step = jax.jit(lambda rate, p, x, y: plain(p, x, rate * y), static_argnums=0)
for epoch in range(4):
    for x, y in batches():
        params, loss = step(1 / (epoch + 1), params, x, y)
"""
    _, (several, trial) = ran(text, tmp_path, window=EACH, **TOLD)
    assert several.counted.together >= 80 and trial.evidence("steps_per_call") == ("contradicted", UNLIKE)


def test_batches_of_other_lengths_run_as_written(tmp_path: Path) -> None:
    epochs = "for _ in range(3):\n    for x, y in batches(70):\n        params, loss = step(params, x, y)\n"
    text = epochs + "    params, loss = step(params, X[:9], Y[:9])"
    together, *_, why = counted(text, tmp_path)
    assert together >= 80 and why == NOTHING


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("step = jax.jit(plain, donate_argnums=0)" + LOOP, BY_SCRIPT, id="donates"),
        pytest.param(IN_A_LIBRARY + LOOP.replace("step(", "step(None, "), BY_LIBRARY, id="a library donates nothing"),
        pytest.param("jax.config.update('jax_debug_nans', True)" + LOOP, CHECKED, id="checked"),
        pytest.param(
            "step = jax.jit(lambda p, x, y, n: plain(p, x, y + 0 * n), static_argnums=3)\n"
            "for number, (x, y) in list(enumerate(batches()))[:12]: params, loss = step(params, x, y, number)",
            SETTING, id="setting",
        ),
        pytest.param("step = jax.jit(lambda p, x, y: (jax.debug.callback(kept.append, x.sum()), plain(p, x, y))[1])"
                     + LOOP + "jax.effects_barrier()", EFFECTS, id="effect"),
        pytest.param("one = jax.ShapeDtypeStruct((), 'float32')\n"
                     "step = jax.jit(lambda p, x, y: plain(p, x, y + jax.pure_callback(lambda: np.float32(1), one)))"
                     + LOOP, EFFECTS, id="Python"),
        pytest.param("step = jax.jit(lambda p, x, y: plain(p, x, y + jnp.convolve(y, jnp.ones(1), 'same')))" + LOOP,
                     CONVOLVES, id="convolves"),
        pytest.param("key = jax.random.key(0)\nstep = jax.jit(lambda p, k, x, y: (*plain(p, x, y), k))\nfor x, y in"
                     " batches(): params, loss, key = step(params, key, x, y)\nkey = 0", KEYS, id="keys"),
        pytest.param("step = jax.jit(lambda p, x, y: (plain(p, x, y)[0], jnp.zeros(())))\n"
                     "for x, y in batches(): _, loss = step(params, x, y)", NOTHING, id="nothing"),
    ],
)  # fmt: skip
def test_others_run_as_written(text: str, says: str, tmp_path: Path) -> None:
    try:
        together, alone, _, why = counted(text, tmp_path)
    finally:
        jax.config.update("jax_debug_nans", False)
    assert (together, alone) == (0, 0) and why == says


@SLOW
def test_losses_hold_no_batches(tmp_path: Path) -> None:
    """An epoch's would hold all of its data."""
    path = tmp_path / "train.py"
    path.write_text(HEAD + LOOP + "    kept.append(loss)")
    names: dict[str, Any] = {"__name__": "__main__"}
    with watched(config={"steps_per_call": 4}, mode="apply") as trial:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), names)
        assert trial.adapter._several.counted.together == 96
        del names["params"], names["loss"], names["kept"][-1]
        gc.collect()
        groups = [each for each in gc.get_objects() if type(each).__name__ == "Group"]
    assert len(groups) <= 3 and len(names["kept"]) == 99  # of 25: what the tests before have left, too


TAKEN = {
    "deleted": "x = jax.device_put(x)\n    params, loss = step(params, x, y)\n    x.delete()",
    "given away": "x = jnp.array(x)\n    params, loss = step(params, x, y)\n    kept.append(add(x)[0])",
    "given away by what is compiled": "x = jnp.array(x)\n    params, loss = step(params, x, y)\n    ahead(x)",
    "a state is deleted": "old = params\n    params, loss = step(params, x, y)\n    if y is not Y: old['w'].delete()",
}


@pytest.mark.parametrize("name", [pytest.param(it, marks=[] if it == "given away" else SLOW) for it in TAKEN])
def test_what_a_call_was_given_may_be_taken_from_it(name: str, tmp_path: Path) -> None:
    """As written the step has it by then. It is taken where JAX computes as soon as it's told, and waits for nobody."""
    add = "add = jax.jit(lambda x: (x.sum(), x * 0), donate_argnums=0)\nahead = add.lower(X[:24]).compile()\n"
    assert counted(add + LOOP.replace("params, loss = step(params, x, y)", TAKEN[name]), tmp_path)[0] == 0


def test_a_batch_that_lies_in_the_scripts_own_memory_is_taken_as_it_is(tmp_path: Path) -> None:
    """``jax.device_put`` copies nothing on a processor, and the script writes the next batch there."""
    text = """
memory = np.empty(24 * 4 * 4 + 64, "uint8")
start = -memory.ctypes.data % 64
own = memory[start : start + 24 * 4 * 4].view("float32").reshape(24, 4)
for x, y in batches():
    own[:] = x
    params, loss = step(params, jax.device_put(own), y)
    if type(loss).__name__ == "ArrayImpl":
        loss.block_until_ready()
"""
    assert counted(text, tmp_path)[0] >= 96


@SLOW
def test_steps_are_taken_as_jax_is_set_in_each_call(tmp_path: Path) -> None:
    """What was compiled under one setting isn't what the script asks for under another."""
    text = """
def plain_as_set(params, x, y):
    return plain(params, x, y * (1 if jax.config.jax_default_matmul_precision == "float32" else 2))
step = jax.jit(plain_as_set)
for number, (x, y) in enumerate(batches()):
    with jax.default_matmul_precision("float32" if number < 50 else "bfloat16"):
        params, loss = step(params, x, y)
"""
    assert counted(text, tmp_path)[0] >= 44


@SLOW
@pytest.mark.parametrize("clears", ["step.clear_cache()", pytest.param("jax.clear_caches()", marks=SLOW)])
def test_a_step_that_the_script_has_compiled_anew_is_the_new_one(clears: str, tmp_path: Path) -> None:
    """What it closes over may have changed, which JAX sees from then on."""
    text = f"""
rate = 0.01
def descent(params, x, y):
    loss, slopes = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree_util.tree_map(lambda p, g: p - rate * g, params, slopes), loss
step = jax.jit(descent)
for number, (x, y) in enumerate(batches()):
    if number in (40, 41):
        rate = 0.001
        {clears}
    params, loss = step(params, x, y)
"""
    assert counted(text, tmp_path)[0] >= 84


@pytest.mark.parametrize("config", [pytest.param({}, marks=SLOW), {"steps_per_call": 4}])
@pytest.mark.parametrize("text", [pytest.param(LOOP, marks=SLOW), """
step = jax.jit(lambda params, x, y: jax.value_and_grad(loss_of)(params, x, y))
for x, y in batches():
    loss, gradients = step(params, x, y)
    params = descend(params, gradients)
"""])  # fmt: skip
def test_nothing_that_the_script_has_let_go_of_is_held(text: str, config: dict[str, Any], tmp_path: Path) -> None:
    """A batch and a state, which a card's memory would miss, and which would count as the script's own."""
    text = "import gc, weakref\nseen = []\n" + text.replace("in batches():", "in batches():\n    x = jnp.array(x)")
    text += "    seen.append(weakref.ref(x))\ndel x\ngc.collect()\n"
    text += "kept = np.array(sum(one() is not None for one in seen))"
    end, _ = ran(text, tmp_path, config=config, mode="trial", window={**ENDLESS, "block_s": 0.05})
    assert end[-2] == 0, end

TOLD: dict[str, Any] = {"mode": "trial", "knowledge": {"framework": "jax", "unit": "samples"}}
EACH = {**ENDLESS, "block_s": 0.0}
"""As in a screen: a block ends with the first step that has run since the last one."""


@pytest.mark.parametrize(
    ("text", "evidence"),
    [
        (LOOP, ("verified", "")),
        (LOOP + "    kept.append(float(loss))", ("not applicable", READ)),
        ("step = jax.jit(plain, donate_argnums=0)" + LOOP, ("not applicable", BY_SCRIPT)),
    ],
)
def test_a_trial_tells_whether_most_calls_ran_together(text: str, evidence: tuple[str, str], tmp_path: Path) -> None:
    """No block ends among four steps that run together, and none counts a step that still waits."""
    _, (several, trial) = ran(text, tmp_path, window=EACH, **TOLD)
    assert trial.evidence("steps_per_call") == evidence, several.counted
    assert 97 <= trial.steps <= 100 and 24 * trial.steps <= trial.samples <= 2400
    steps = [each["steps"] for each in trial.log.of("block")]
    assert steps[-12:] == [4 if evidence[0] == "verified" else 1] * 12, steps


def test_losses_of_a_screen_are_those_of_the_script_as_written(tmp_path: Path) -> None:
    _, (_, written) = ran(LOOP, tmp_path, window=EACH, config={}, mode="trial")
    _, (_, trial) = ran(LOOP, tmp_path, window=EACH, **TOLD)
    losses, own = ({each["samples"]: each["value"] for each in of.log.of("loss")} for of in (written, trial))
    assert len(own) >= 24 and own == {number: pytest.approx(losses[number], rel=1e-5) for number in own}


@pytest.mark.parametrize(("text", "says"), [
    (LOOP, ""), (LOOP + "    kept.append(float(loss))", READ),
    ("step = jax.jit(plain, donate_argnums=0)" + LOOP, BY_SCRIPT),
])  # fmt: skip
def test_the_script_as_written_tells_whether_calls_could(text: str, says: str, tmp_path: Path) -> None:
    _, (_, trial) = ran(text, tmp_path, config={}, mode="trial", window={**ENDLESS, "block_s": 0.05})
    facts = trial.log.of("facts")[0]
    assert facts["left_out"].get("steps_per_call", "") == says
    assert facts["as_written"].get("steps_per_call") == (None if says else 1)
