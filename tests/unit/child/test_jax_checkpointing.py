"""The knob "checkpointing": what a compiled step computes again in its backward, and what it leaves as it is written.

Each script is run as plain Python would, and with the knob: what it ends with is the same, to rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.jax_computed_again import LOOP, PLAIN, STEP, facts_of, found, ran, told, tried
from support.jax_here import jax

from tuner.child.jax.checkpointing import CONCRETE, DRAWS, EFFECTS, FAILED, NOTHING, OWN, SMALL, UNDONE, UNSEEN
from tuner.child.jax.segments import Library, in_segments

AGAIN = {
    "a loss": PLAIN + STEP + LOOP,
    "a compiled loss within": PLAIN + "loss_of = jax.jit(loss_of)" + STEP + LOOP,
    "dropout": """
def loss_of(params, x, key):
    for weights in params:
        key, drawn = jax.random.split(key)
        x = jnp.where(jax.random.bernoulli(drawn, 0.8, x.shape), jnp.tanh(x @ weights), 0)
    return (x**2).mean()
@jax.jit
def step(params, key, x):
    key, own = jax.random.split(key)
    loss, gradients = jax.value_and_grad(loss_of)(params, x, own)
    return descend(params, gradients), key, loss
key = jax.random.key(1)
for number in range(3):
    params, key, loss = step(params, key, X)
del key
""",
    "what stands beside the loss": """
def loss_of(params, x):
    out = layers(params, x)
    return (out**2).mean(), {"out": out, "name": "tanh", "none": None, "count": 3, "numpy": np.arange(2), "x": x}
@jax.jit
def step(params, x):
    (loss, beside), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, x)
    assert beside["name"] == "tanh" and type(beside["count"]) is int and type(beside["numpy"]) is np.ndarray
    return descend(params, gradients), loss + beside["out"].sum() + beside["x"].sum()
""" + LOOP,
    "arguments by number and by name": """
def loss_of(x, first, last, *, scale):
    return scale * (layers(last, layers(first, x)) ** 2).mean()
@jax.jit
def step(params, x):
    first, last = jax.grad(loss_of, argnums=(1, -1))(x, params[:4], params[4:], scale=2.0)
    return descend(params, first + last), x.sum()
""" + LOOP,
    "a loop over layers": """
def loss_of(params, x):
    stacked = jnp.stack(params)
    def turn(carry, given):
        weights, number = given
        carry = jnp.tanh(carry @ weights) + X[0] * number
        return carry, carry.sum()
    x, sums = jax.lax.scan(turn, x, (stacked, jnp.arange(6)), reverse=True, unroll=2)
    return (x**2).mean() + 1e-3 * sums.sum()
""" + STEP + LOOP,
    "rules of their own": """
@jax.custom_vjp
def squashed(x):
    return jnp.tanh(x)
squashed.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (0.5 * g / jnp.cosh(x) ** 2,))
def loss_of(params, x):
    for weights in params:
        x = jax.nn.silu(squashed(x @ weights)) + jax.nn.relu(x)
    return -jax.nn.log_softmax(x)[:, 0].mean()
""" + STEP + LOOP,
    "a gradient in the loss": """
def loss_of(params, x):
    slope = jax.grad(lambda x: layers(params, x).sum())(x)
    return (layers(params, x) ** 2).mean() + (slope**2).mean()
""" + STEP + LOOP,
    "a gradient for each sample": PLAIN + """
@jax.jit
def step(params, x):
    gradients = jax.vmap(jax.grad(loss_of), (None, 0))(params, x)
    return descend(params, jax.tree_util.tree_map(lambda g: g.mean(0), gradients)), x.sum()
""" + LOOP,
    "steps in a loop": PLAIN + """
@jax.jit
def step(params, x):
    def one(params, number):
        loss, gradients = jax.value_and_grad(loss_of)(params, x + number)
        return descend(params, gradients), loss
    params, losses = jax.lax.scan(one, params, jnp.arange(3))
    return params, losses.sum()
""" + LOOP,
    "what a branch gives": """
def loss_of(params, x):
    x = jax.lax.cond(x.sum() > 0, lambda x: layers(params[:2], x), lambda x: 2 * x, x)
    return (layers(params[2:], x) ** 2).mean()
""" + STEP + LOOP,
    "constants, numbers and other formats": """
def loss_of(params, x):
    x = x.astype("bfloat16")
    for number, weights in enumerate(params):
        x = jnp.tanh(x @ weights.astype("bfloat16")) * np.float32(0.5) + X[number].astype("bfloat16")
    return (x[jnp.arange(64), jnp.arange(64) % 16].astype("float32") ** 2).mean()
""" + STEP + LOOP,
}  # fmt: skip


VARIANTS = {
    "a gradient for each sample", "a gradient in the loss", "a compiled loss within", "a loop over layers", "a loss",
    "constants, numbers and other formats", "rules of their own", "steps in a loop", "what a branch gives",
}  # fmt: skip


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in AGAIN]
)
def test_what_is_computed_again_trains_alike(name: str, tmp_path: Path) -> None:
    assert found(AGAIN[name], tmp_path) == [""]


OTHERS = {
    "Python in it": ("""
def loss_of(params, x):
    one = jax.ShapeDtypeStruct((), "float32")
    return (layers(params, x) ** 2).mean() + jax.lax.stop_gradient(jax.pure_callback(lambda: np.float32(1), one))
""" + STEP + LOOP, EFFECTS),
    "it prints": ("""
def loss_of(params, x):
    jax.debug.callback(lambda x: kept.append(float(x)), x.sum(), ordered=True)
    return (layers(params, x) ** 2).mean()
""" + STEP + LOOP + "jax.effects_barrier()\nassert len(kept) == 3, kept", EFFECTS),
    "a rule for gradients prints": ("""
@jax.custom_jvp
def squashed(x):
    return jnp.tanh(x)
@squashed.defjvp
def rule(given, directions):
    jax.debug.callback(lambda x: kept.append(float(x)), given[0].sum())
    return jnp.tanh(given[0]), directions[0] / jnp.cosh(given[0]) ** 2
def loss_of(params, x):
    return (squashed(layers(params, x)) ** 2).mean()
""" + STEP + LOOP + "jax.effects_barrier()\nassert len(kept) == 3, kept", EFFECTS),
    "its own": ("""
def loss_of(params, x):
    return (jax.checkpoint(layers)(params, x) ** 2).mean()
""" + STEP + LOOP, OWN),
    "its own in a loop": ("""
def loss_of(params, x):
    turn = jax.remat(lambda x, weights: (jnp.tanh(x @ weights), None), prevent_cse=False)
    return (jax.lax.scan(turn, x, jnp.stack(params))[0] ** 2).mean()
""" + STEP + LOOP, OWN),
    "other numbers each time": ("""
def loss_of(params, x):
    drawn = jax.lax.rng_uniform(0.0, 1.0, (16,))
    return (layers(params, x) ** 2).mean() + 0 * drawn.sum()
""" + STEP + LOOP, DRAWS),
    "nothing to spare": ("""
def loss_of(params, x):
    return (x @ jnp.concatenate(params, 1)).mean()
""" + STEP + LOOP, SMALL),
    "values": ("""
def loss_of(scale, x):
    return scale["by"] * (layers(params, x) ** 2).mean() if scale["by"] else 0.0
@jax.jit
def step(params, x):
    loss, gradients = jax.value_and_grad(loss_of)({"by": jnp.float32(2)}, x)
    return descend(params, [gradients["by"]] * 6), loss
""".replace('{"by": jnp.float32(2)}', "TWO").replace("@jax.jit", 'TWO = {"by": np.float32(2)}\n@jax.jit') + LOOP,
               CONCRETE),
}  # fmt: skip


LEFT_OUT = {"a rule for gradients prints", "its own in a loop"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LEFT_OUT else name for name in OTHERS]
)
def test_others_are_left_as_they_are(name: str, tmp_path: Path) -> None:
    text, why = OTHERS[name]
    assert found(text, tmp_path) == [why]


INNER = """
inner = jax.jit(jax.grad(lambda params, x: (layers(params, x) ** 2).mean()))
def loss_of(params, x):
    return (layers(descend(params, inner(params, x)), x) ** 2).mean()
"""


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize("before", [pytest.param("", marks=pytest.mark.slow), "inner(params, X)\n"])
def test_a_compiled_gradient_in_a_loss_is_a_part_of_it(before: str, tmp_path: Path) -> None:
    """As one that was compiled before is: neither is a script's own way to compute again."""
    assert set(found(INNER + before + STEP + LOOP, tmp_path)) == {""}


def test_each_of_two_losses_of_one_name_is_told(tmp_path: Path) -> None:
    text = """
@jax.jit
def step(params, x):
    gradients = jax.grad(lambda params: (layers(params, x) ** 2).mean())(params)
    small = jax.grad(lambda params: (params[0] ** 2).mean())(params)
    return descend(descend(params, gradients), small), x.sum()
"""
    assert found(text + LOOP, tmp_path) == ["", SMALL]


def test_each_trace_of_a_loss_is_told_that_ends_otherwise(tmp_path: Path) -> None:
    """Of two models that have one loss, or a library's function around each."""
    text = PLAIN + """
@jax.jit
def step(params, x):
    params = descend(params, jax.grad(loss_of)(params, x))
    return descend(params[:1], jax.grad(loss_of)(params[:1], x)) + params[1:], x.sum()
"""
    assert found(text + LOOP, tmp_path) == ["", SMALL]


@pytest.mark.slow
def test_what_fails_of_one_trace_leaves_what_is_told_of_an_earlier_one(tmp_path: Path) -> None:
    """The first model's loss was no longer told as computed again."""
    text = """
@jax.custom_vjp
def told(x):
    return jnp.tanh(x)
def forward(x):
    jax.debug.callback(lambda value: None, x[0, 0])
    return jnp.tanh(x), x
told.defvjp(forward, lambda x, g: (g / jnp.cosh(x) ** 2,))
def loss_of(params, x, act):
    for weights in params:
        x = act(x @ weights)
    return (x**2).mean()
@functools.partial(jax.jit, static_argnums=2)
def step(params, x, act):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, act)
    return descend(params, gradients), loss
for act in (jnp.tanh, told, jnp.tanh):
    params, loss = step(params, X, act)
"""
    assert found(text, tmp_path) == ["", EFFECTS]


@pytest.mark.slow
def test_a_rule_whose_function_cant_be_traced_is_left_as_it_is(tmp_path: Path) -> None:
    """As written JAX doesn't call it where it is differentiated."""
    text = """
@jax.custom_vjp
def squashed(x):
    raise NotImplementedError("only differentiated")
squashed.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g / jnp.cosh(x) ** 2,))
def loss_of(params, x):
    return (squashed(layers(params, x)) ** 2).mean()
"""
    why = "NotImplementedError: only differentiated"
    assert found(text + STEP + LOOP, tmp_path) == [FAILED.format(why)]


@pytest.mark.parametrize("value", [pytest.param("out", marks=pytest.mark.slow), "(out.mean(), out)"])
def test_what_jax_takes_no_gradient_of_it_refuses_at_once(value: str, tmp_path: Path) -> None:
    text = f"""
def loss_of(params, x, is_summed=False):
    kept.append(np.zeros(1))
    out = layers(params, x) ** 2
    return out.mean() if is_summed else {value}
@jax.jit
def step(params, x):
    try:
        return descend(params, jax.grad(loss_of)(params, x)), x.sum()
    except TypeError:
        return descend(params, jax.grad(loss_of)(params, x, is_summed=True)), x.sum()
"""
    assert found(text + LOOP + "assert len(kept) == 2, kept", tmp_path) == [""]


def test_python_runs_once_for_each_trace_and_nothing_is_compiled_twice(tmp_path: Path) -> None:
    text = PLAIN.replace("    return", "    kept.append(np.zeros(1))\n    return") + STEP + LOOP
    end, trial = ran(text + "assert len(kept) == 1 and step._cache_size() == 1", tmp_path)
    assert told(trial) == [""] and len(end) == 8 and facts_of(trial)["retraces"] == 0


def test_no_value_of_the_trace_outlives_it(tmp_path: Path) -> None:
    jax.config.update("jax_check_tracer_leaks", True)
    try:
        assert told(ran(AGAIN["a loop over layers"], tmp_path)[1]) == [""]
    finally:
        jax.config.update("jax_check_tracer_leaks", False)


def test_a_gradient_outside_of_a_compiled_function_is_left_as_it_is(tmp_path: Path) -> None:
    text = PLAIN + STEP.replace("@jax.jit", "") + LOOP
    trial = tried(text, tmp_path)
    assert told(trial) == [] and trial.evidence("checkpointing") == ("not applicable", NOTHING)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (PLAIN + STEP + LOOP, ""),
        (PLAIN + STEP.replace("@jax.jit", "") + LOOP, NOTHING),
        (OTHERS["its own"][0], OWN),
        ("jax.checkpoint(layers)(params, X)\n" + PLAIN + STEP + LOOP, ""),
    ],
    ids=["compiled", "eager", "its own", "its own, but not to train"],
)
def test_the_script_as_written_tells_whether_it_can_be_had(text: str, why: str, tmp_path: Path) -> None:
    _, trial = ran(text, tmp_path, config={})
    facts = facts_of(trial)
    assert facts["left_out"].get("checkpointing", "") == why
    assert facts["as_written"].get("checkpointing") == (None if why else False)


@pytest.mark.slow  # 3 s beside three others
def test_where_xla_merges_both_it_isnt_in_effect(tmp_path: Path) -> None:
    """As its client in the tests' process, which was made without the flag, does when it optimizes."""
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        _, trial = ran(PLAIN + STEP + LOOP, tmp_path)
    finally:
        jax.config.update("jax_disable_most_optimizations", True)
    assert trial.evidence("checkpointing") == ("contradicted", UNDONE)


@pytest.mark.slow
def test_a_loop_that_is_computed_again_needs_no_barriers(tmp_path: Path) -> None:
    """XLA merges nothing across two loops, and what stands before it here isn't needed again."""
    text = """
def loss_of(params, x):
    def turn(carry, given):
        for weights in params[:2]:
            carry = jax.nn.silu(carry @ weights + given)
        return carry, None
    return (jax.lax.scan(turn, jnp.zeros((8, 16)), x.reshape(8, 8, 16))[0] ** 2).mean()
"""
    _, trial = ran(text + STEP + LOOP, tmp_path)
    assert trial.evidence("checkpointing") == ("verified", "")


def test_what_is_only_traced_isnt_in_effect(tmp_path: Path) -> None:
    jax.clear_caches()
    text = PLAIN + STEP + "jax.eval_shape(step, params, X)\nplain = jax.jit(lambda p, x: (descend(p, p), x.sum()))"
    _, trial = ran(text + LOOP.replace("step(", "plain("), tmp_path, mode="apply")
    assert trial.adapter._checkpointing.effects()["checkpointing"].reason == UNSEEN


def test_a_trace_is_cut_where_little_is_alive() -> None:
    def loss_of(x: Any) -> Any:
        for _ in range(6):
            x = jax.numpy.sin(jax.numpy.tile(x, 8)).reshape(8, -1).sum(0)
        return x.sum()

    library = Library(jax)
    made = in_segments(library, library.trace(lambda x: [loss_of(x)])(jax.numpy.ones(64)))
    assert made is not None and made.segments == 5 and made.kept < 0.4 * made.kept_as_written
