"""How far the weights of loops of JAX's move in a screen: which arrays are read, and that nothing is changed by it.

Each script keeps its weights behind every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.jax_here import jax
from support.jax_regression import LOOP, MODEL, written
from support.jax_trial import watched

STEPS = 12
HEAD = f"""
ROWS, loss = 288, None
{MODEL}
def batches():
    for start in range(0, ROWS, 24):
        yield X[start : start + 24], Y[start : start + 24]
def keep(*weights):
    kept.append([np.array(each, "float32") for each in weights])
"""
KEEP = "    keep(params['w'])"
JITTED = LOOP + "    kept.append(loss)\n" + KEEP
ADAM = """
@functools.partial(jax.jit, donate_argnums=0)
def step(state, x, y):
    params, first, second = state
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradients)
    params = jax.tree.map(lambda p, m, v: p - 0.01 * m / (jnp.sqrt(v) + 1e-8), params, first, second)
    return (params, first, second), loss
state = tuple({"w": jnp.zeros(4), "b": [jnp.zeros(())]} for _ in range(3))
for x, y in batches():
    state, loss = step(state, x, y)
    keep(state[0]["w"])
"""
CAST = """
params = PARAMS
@jax.jit
def step(params, x, y):
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    loss, gradients = jax.value_and_grad(loss_of)(half, x, y)
    return jax.tree.map(lambda p, g: p - 0.01 * g.astype(p.dtype), params, gradients), loss
""" + LOOP + KEEP  # fmt: skip
FLAT = """
from jax.flatten_util import ravel_pytree
flat, apart = ravel_pytree(params)
@jax.jit
def step(flat, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(apart(flat), x, y)
    return flat - 0.01 * ravel_pytree(gradients)[0], loss
for x, y in batches():
    flat, loss = step(flat, x, y)
    keep(flat)
"""
ADVERSARY = """
@jax.jit
def step(params, x, y):
    x = x + 0.1 * jnp.sign(jax.grad(loss_of, argnums=1)(params, x, y))
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss
""" + LOOP + KEEP  # fmt: skip
WITHIN = """
inner = jax.jit(jax.value_and_grad(loss_of))
@jax.jit
def step(params, x, y):
    loss, gradients = inner(params, x, y)
    return descend(params, gradients), loss
""" + LOOP + KEEP  # fmt: skip
TEAM = """
@jax.jit
def telling(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return descend(params, gradients), loss, gradients["w"]
for number, (x, y) in enumerate(batches()):
    if number % 3 == 2:
        params, loss, _ = telling(params, x, y)
    else:
        params, loss = step(params, x, y)
""" + KEEP  # fmt: skip
MADE_ANEW = """
for number, (x, y) in enumerate(batches()):
    if number % 4 == 0:
        step = jax.jit(lambda params, x, y: plain(params, x, y))
    params, loss = step(params, x, y)
""" + KEEP  # fmt: skip
SCAN = """
@jax.jit
def epoch(params, xs, ys):
    def body(params, batch):
        loss, gradients = jax.value_and_grad(loss_of)(params, *batch)
        return descend(params, gradients), loss
    return jax.lax.scan(body, params, (xs, ys))
for _ in range(12):
    params, losses = epoch(params, X.reshape(12, 24, 4), Y.reshape(12, 24))
    loss = losses[-1]
""" + KEEP  # fmt: skip
APART = """
gradient, update = GRADIENT, UPDATE
for x, y in batches():
    loss, gradients = gradient(params, x, y)
    params = update(params, gradients)
""" + KEEP  # fmt: skip
BY_HAND = APART.replace("GRADIENT", "jax.jit(jax.value_and_grad(loss_of))").replace("UPDATE", "descend")
EAGER = APART.replace("GRADIENT", "jax.value_and_grad(loss_of)").replace("UPDATE", "descend")
GAN = """
def fools(maker, judge, x):
    return jnp.mean((jnp.tanh(x @ maker) @ judge - 1) ** 2)
def judges(judge, maker, x):
    return jnp.mean((x @ judge - 1) ** 2) + jnp.mean((jnp.tanh(x @ maker) @ judge) ** 2)
@jax.jit
def step(networks, x):
    maker, judge = networks["maker"], networks["judge"]
    fooled, one = jax.value_and_grad(fools)(maker, judge, x)
    right, other = jax.value_and_grad(judges)(judge, maker, x)
    return {"maker": maker - RATE * one, "judge": judge - 0.05 * other}, (fooled, right)
networks = {"maker": 0.1 * jnp.ones((4, 4)), "judge": 0.2 * jnp.ones((4, 4))}
for x, _ in batches():
    networks, (loss, _) = step(networks, x)
    keep(networks["maker"], networks["judge"])
"""

STAYS = "def descend(params, gradients):\n    return jax.tree.map(jnp.copy, params)\n"
ENSEMBLE = """
models = [{"w": 9.0 * jnp.ones(4) * each, "b": [jnp.zeros(())]} for each in range(MODELS)]
for x, y in batches():
    for each in range(MODELS):
        models[each], loss = step(models[each], x, y)
"""


def screened(text: str, folder: Path, **given: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """What was told of the weights of a script in a seeded trial, and what it ended with."""
    run = written(HEAD + text, folder)
    with watched(**{"seed": 1, **given}) as trial:
        end = run()
        trial.end()
        return trial.log.of("weights"), end


def way(end: Sequence[Any], *, last: int, which: int = 0) -> list[float]:
    """Of the weights behind the first step to those before, or behind, the last one. ``end``: what a script ended with,
    whose weights were kept in turn.
    """
    kept = [leaf for leaf in end if leaf.ndim]
    each = len(kept) // STEPS
    rows = kept[len(kept) - each * STEPS :][which::each]
    found: list[float] = (rows[last] - rows[0]).astype("float64").reshape(-1).tolist()
    return found


TELLS = """
@functools.partial(jax.jit, static_argnums=3)
def step(params, x, y, tells):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    params = descend(params, gradients)
    return (loss, gradients, params) if tells else (loss, params)
for number, (x, y) in enumerate(batches()):
    loss, *_, params = step(params, x, y, number % 3 == 2)
""" + KEEP  # fmt: skip
SWAPPED = """
@functools.partial(jax.jit, static_argnums=4)
def step(params, moments, x, y, is_odd):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
    params = descend(params, moments)
    return ((moments, params) if is_odd else (params, moments)), loss
moments = jax.tree.map(jnp.zeros_like, params)
for number, (x, y) in enumerate(batches()):
    both, loss = step(params, moments, x, y, number % 3 == 2)
    params, moments = both[:: -1 if number % 3 == 2 else 1]
"""
OF_NUMPY = "params = jax.tree.map(np.asarray, params)\n" + JITTED
LOOPS = {
    "jitted": JITTED, "moments beside, donated": ADAM, "cast": CAST.replace("PARAMS", "params"), "flat": FLAT,
    "an adversary before": ADVERSARY, "a function within": WITHIN, "two functions by turns": TEAM,
    "made anew": MADE_ANEW, "other results now and then": TELLS, "an epoch in a call": SCAN,
    "begun as arrays of NumPy's": OF_NUMPY,
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_what_gradients_are_taken_of_is_read_behind_each_call(name: str, tmp_path: Path) -> None:
    """From the first step on, by whatever functions; of samples and moments nothing."""
    (told,), end = screened(LOOPS[name], tmp_path)
    assert told["steps"] >= STEPS - 1 and len(told["changes"]) == 1
    assert told["changes"][0] == pytest.approx(way(end, last=-1), rel=1e-3)
    assert told["path"] >= 0.99 * numpy.linalg.norm(told["changes"][0]) > 0


def test_of_a_function_that_gives_them_at_changing_places_nothing_is_told(tmp_path: Path) -> None:
    """Behind its calls something else lies there: moments of the same shapes moved 128 times as far."""
    (told,), _ = screened(SWAPPED, tmp_path)
    assert (told["steps"], told["path"], told["changes"]) == (0, 0.0, [])


@pytest.mark.parametrize(("text", "first"), [(BY_HAND, 0), (EAGER, None)], ids=["gradients jitted", "nothing jitted"])
def test_what_is_updated_by_hand_is_read_before_the_next_gradient(text: str, first: int | None, tmp_path: Path) -> None:
    (told,), end = screened(text, tmp_path)
    assert told["steps"] == STEPS - (2 if first == 0 else 1)
    expected = numpy.array(way(end, last=-2))
    if first is None:
        expected += [leaf for leaf in end if leaf.ndim][-STEPS]  # they begin at 0
    assert told["changes"][0] == pytest.approx(expected.tolist(), rel=1e-3)


@pytest.mark.parametrize("bias", ["np.zeros(1, 'float32')", "jnp.zeros(1)"], ids=["all", "some"])
def test_weights_that_begin_as_arrays_of_numpys_are_all_read_once_they_are_jaxs(bias: str, tmp_path: Path) -> None:
    """A course by one of them alone would say nothing of the others."""
    text = f"params = {{'w': np.zeros(4, 'float32'), 'b': [{bias}]}}\n{EAGER}"
    (told,), end = screened(text, tmp_path)
    assert (told["steps"], len(told["changes"])) == (STEPS - 2, 2)
    by_place = {len(change): change for change in told["changes"]}
    assert by_place[4] == pytest.approx(way([leaf for leaf in end if leaf.shape == (4,)][1:], last=-2), rel=1e-3)


def test_weights_of_sixteen_bits_are_read(tmp_path: Path) -> None:
    text = CAST.replace("PARAMS", "jax.tree.map(lambda p: (p + 1).astype(jnp.bfloat16), params)")
    (told,), end = screened(text, tmp_path)
    assert told["steps"] == STEPS - 1
    assert told["changes"][0] == pytest.approx(way(end, last=-1), rel=1e-3)


def test_both_networks_of_a_gan_are_groups_of_their_own(tmp_path: Path) -> None:
    """Of the same shapes: what of one stands still is told of the group."""
    groups, end = screened(GAN.replace("RATE", "0.1"), tmp_path)
    assert [told["steps"] for told in groups] == [STEPS - 1] * 2
    for which, told in enumerate(groups):
        assert told["changes"][0] == pytest.approx(way(end, last=-1, which=which), rel=1e-3)
    still, moved = screened(GAN.replace("RATE", "0.0"), tmp_path)[0]
    assert still["path"] == 0 < moved["path"] and still["steps"] == moved["steps"]


@pytest.mark.parametrize("text", [JITTED, EAGER], ids=["jitted", "eager"])
def test_weights_that_stand_still_are_told(text: str, tmp_path: Path) -> None:
    (told,), _ = screened(STAYS + text, tmp_path)
    assert told["steps"] >= STEPS - 2 and told["path"] == 0


def test_weights_that_are_set_anew_have_no_course(tmp_path: Path) -> None:
    anew = "    if len(kept) % 8 == 6:\n        params = {'w': 1e3 * jnp.ones(4) * len(kept), 'b': params['b']}"
    (told,), _ = screened(f"{JITTED}\n{anew}", tmp_path)
    assert told["steps"] >= STEPS - 1 and told["changes"] == []


@pytest.mark.parametrize("models", [2, 3, 5])
def test_the_way_from_one_model_to_another_is_no_training(models: int, tmp_path: Path) -> None:
    """One function trains several by turns: none of them is seen to move where all stand still."""
    text = ENSEMBLE.replace("MODELS", str(models))
    trained, still = (screened(head + text, tmp_path)[0][0] for head in ("", STAYS))
    assert trained["steps"] == still["steps"] and (trained["changes"], still["changes"]) == ([], [])
    assert still["path"] == 0 < trained["path"] < 9 * models, "beside it the ways are hundreds"


def test_of_a_trial_without_a_seed_nothing_is_read(tmp_path: Path) -> None:
    assert screened(JITTED, tmp_path, seed=None)[0] == []


@pytest.mark.parametrize(
    "config", [pytest.param({}, marks=pytest.mark.slow), {"donation": True}], ids=["as written", "donation"]
)
@pytest.mark.parametrize("name", ["jitted", "moments beside, donated", "gan", "eager"])
def test_reading_changes_nothing(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    """Every weight and loss is what it is under plain Python, bit for bit."""
    text = {"gan": GAN.replace("RATE", "0.1"), "eager": EAGER, **LOOPS}[name]
    plain = written(HEAD + text, tmp_path)()
    _, end = screened(text, tmp_path, config=config)
    assert [leaf.tobytes() for leaf in end] == [leaf.tobytes() for leaf in plain]


@pytest.mark.slow  # 2 s beside three others
def test_what_is_compiled_to_read_is_not_the_scripts(tmp_path: Path) -> None:
    graphs = []
    for seed in (None, 1):
        jax.clear_caches()
        run = written(HEAD + JITTED, tmp_path)
        with watched(seed=seed) as trial:
            run()
            graphs.append((trial.adapter.compiling.graphs, trial.adapter.compiling.traces))
            trial.end()
    assert graphs[0] == graphs[1]


def test_donation_finds_what_it_gives_away_held_by_nobody(tmp_path: Path) -> None:
    run = written(HEAD + LOOP, tmp_path)
    with watched(seed=1, config={"donation": True}) as trial:
        run()
        trial.end()
        assert trial.evidence("donation") == ("verified", "")
        assert [told["steps"] for told in trial.log.of("weights")] == [STEPS - 1]
