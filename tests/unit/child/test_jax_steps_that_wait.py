"""Steps of JAX that wait for others to run together: whatever JAX is set to where they run, and which wait at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from support.in_process import ENDLESS
from support.jax_regression import MODEL, written
from support.jax_trial import watched

from tuner.child.jax.plans import SETTING
from tuner.child.jax.several import UNLIKE

HEAD = f"""
ROWS, loss = 2400, None
{MODEL}
enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
step = jax.jit(lambda params, number, x, y: plain(params, x, y + 0 * number))
def batches():
    for number in range(100):
        yield number, (X[number * 24 :][:24], Y[number * 24 :][:24])
"""
TOLD: dict[str, Any] = {"mode": "trial", "knowledge": {"framework": "jax", "unit": "samples"}}


def trial_of(text: str, folder: Path, **given: Any) -> Any:
    """A trial, or an applied run, with the knob, which ends with what plain Python does."""
    run = written(HEAD + text, folder)
    expected = run()
    with watched(config={"steps_per_call": 4}, window={**ENDLESS, "block_s": 0.0}, **{**TOLD, **given}) as trial:
        end = run()
        if trial.session.measuring:
            trial.end()
    assert len(end) == len(expected)
    for leaf, as_written in zip(end, expected, strict=True):
        assert leaf.dtype == as_written.dtype
        numpy.testing.assert_allclose(leaf, as_written, rtol=2e-6, atol=1e-7)
    return trial


SET_OTHERWISE = {
    "doubles where a result is read": """
for number, (x, y) in batches():
    params, loss = step(params, number, x, y)
    if number % 10 == 5:
        with enable_x64(True):
            kept.append(float(loss))
""",
    "doubles where it trains": """
for number, (x, y) in batches():
    with enable_x64(True):
        params, loss = step(params, number + (1 << 40), x.astype("float64"), y.astype("float64"))
    if number % 10 == 5:
        kept.append(float(loss))
""",
    "no transfers of which the script says nothing": """
with jax.transfer_guard("disallow"):
    for number, (x, y) in batches():
        params, loss = step(params, jax.device_put(np.int32(number)), *jax.device_put((x, y)))
""",
}


@pytest.mark.parametrize(
    "name", [it if number == 0 else pytest.param(it, marks=pytest.mark.slow) for number, it in enumerate(SET_OTHERWISE)]
)
def test_steps_run_as_jax_was_set_where_they_were_called(name: str, tmp_path: Path) -> None:
    several = trial_of(SET_OTHERWISE[name], tmp_path, mode="apply").adapter._several
    assert several.counted.together >= 72 and not several.counted.failed, several.counted


def test_an_array_that_a_step_gave_is_the_same_in_the_steps_that_follow(tmp_path: Path) -> None:
    """The weights that a network is trained towards: those of some steps ago."""
    text = """
step = jax.jit(lambda params, towards, x, y: plain(params, x, y + 0.1 * x @ towards["w"]))
towards = params
for number, (x, y) in batches():
    if number % 20 == 10:
        towards = params
    params, loss = step(params, towards, x, y)
"""
    several = trial_of(text, tmp_path, mode="apply").adapter._several
    assert several.counted.together >= 80, several.counted


@pytest.mark.slow
def test_arguments_that_only_some_calls_have_are_told_as_the_reason(tmp_path: Path) -> None:
    """Nobody reads a result: each third call is another one, for which those before it have to run."""
    text = """
step = jax.jit(lambda params, x, y, tells=None: plain(params, x, y))
for number, (x, y) in batches():
    params, loss = step(params, x, y, **({"tells": 1.0} if number % 3 == 2 else {}))
"""
    assert trial_of(text, tmp_path).evidence("steps_per_call") == ("not applicable", UNLIKE)


SETTINGS = {
    "in a tuple": ("given=(2, 0.5)", "given[1] * loss_of(p, x, given[0] * y)", "(2, 0.5)"),
    "of NumPy's": ("given=None", "given * loss_of(p, x, y)", "np.float32(0.5)"),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_the_step_is_compiled_for_stay_what_they_are(name: str, tmp_path: Path) -> None:
    """By number from the end, too."""
    takes, loss, given = SETTINGS[name]
    text = f"""
def trained(p, x, y, {takes}):
    assert not isinstance(given, jax.core.Tracer)
    value, gradients = jax.value_and_grad(lambda p: {loss})(p)
    return descend(p, gradients), value
step = jax.jit(trained, static_argnums=-1)
for number, (x, y) in batches():
    params, loss = step(params, x, y, {given})
"""
    several = trial_of(text, tmp_path, mode="apply").adapter._several
    assert several.counted.together >= 92, (several.counted, several.why)


def test_a_setting_of_numpys_that_changes_is_told_as_the_reason(tmp_path: Path) -> None:
    text = """
step = jax.jit(lambda params, x, y, rate: plain(params, x, rate * y), static_argnums=3)
for number, (x, y) in batches():
    params, loss = step(params, x, y, np.float32(number % 4))
"""
    assert trial_of(text, tmp_path).evidence("steps_per_call") == ("not applicable", SETTING)


def test_a_read_among_steps_that_wait_keeps_no_later_ones_apart(tmp_path: Path) -> None:
    """The steps that it had run are counted with the next call, and that waits: a block that ended with them had that
    one run alone, to be counted with the call behind it, and so on.
    """
    text = """
for number, (x, y) in batches():
    params, loss = step(params, number, x, y)
    if number % 30 == 5:
        kept.append(float(loss))
"""
    trial = trial_of(text, tmp_path)
    assert trial.adapter._several.counted.together >= 72, trial.adapter._several.counted
    assert trial.evidence("steps_per_call") == ("verified", "")
