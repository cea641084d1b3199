"""Values that a loop of JAX's reads on the host: what waits for the device is told, what was there by then isn't."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from support.in_process import ENDLESS
from support.jax_here import jax
from support.jax_trial import Trial, descend, loss_of, watched, weights

from tuner.child.patches import unpatch_all

STEPS, WIDE = 6, 400
WINDOW = {**ENDLESS, "block_s": 60.0}
"""No block ends, which would wait for the device by itself."""
x = numpy.ones((WIDE, 4), "float32")
y = numpy.ones(WIDE, "float32")


@jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
def slow(number: Any) -> Any:
    """The number, once there was something to do for it that no processor has done when the call is."""
    wide = jax.numpy.full((WIDE, WIDE), number) / WIDE
    for _ in range(4):
        wide = wide @ wide
    return number + wide[0, 0] * 0


def _trained(trial: Trial, read: Callable[[Any], object], given: Callable[[Any], Any] = slow) -> None:
    """``given``: what each step gives of its loss, which is ``read`` then."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def step(params: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        return descend(params, gradients), given(loss)

    params = weights()
    for _ in range(STEPS):
        params, loss = step(params, x, y)
        read(loss)
    trial.end()


@pytest.mark.parametrize("read", [float, lambda loss: loss.item(), jax.device_get])
def test_a_value_that_is_read_in_each_step_is_told_of(read: Callable[[Any], object]) -> None:
    with watched(window=WINDOW) as trial:
        _trained(trial, read)
    [remark] = [text for text in trial.session.facts.remarks if "read on the host" in text]
    assert f" of {STEPS} steps values were" in remark and "float()" in remark


def test_an_evaluation_between_two_steps_is_one_of_them() -> None:
    """It was told as though a value were read in each step."""
    taken = list[Any]()

    def evaluate(loss: Any) -> None:
        taken.append(loss)
        if len(taken) == STEPS // 2:
            for number in range(STEPS):
                float(slow(loss + number))

    with watched(window=WINDOW) as trial:
        _trained(trial, evaluate)
    assert len(taken) == STEPS and not any("read on the host" in text for text in trial.session.facts.remarks)


def test_a_value_that_is_there_by_then_costs_nothing() -> None:
    """As one that is read a step later."""
    with watched(window=WINDOW) as trial:
        _trained(trial, lambda loss: float(loss.block_until_ready()))
    assert not any("read on the host" in text for text in trial.session.facts.remarks)


def test_a_loss_that_autotune_reads_is_no_read_of_the_scripts() -> None:
    """A block ends with each step, as it does where steps are long: steps_per_call was left out, "the script reads"."""
    with watched(window={**WINDOW, "block_s": 0.0}) as trial:
        _trained(trial, lambda loss: None, given=lambda loss: loss)
    facts = trial.session.facts
    assert len(trial.log.of("loss")) >= STEPS - 1
    assert facts.as_written.get("steps_per_call") == 1, facts.left_out


def test_nothing_is_left_of_it_in_jax() -> None:
    arrays: Any = sys.modules["jax._src.array"]
    before = dict(vars(arrays.ArrayImpl))
    with watched():
        assert dict(vars(arrays.ArrayImpl)) != before
    unpatch_all()
    assert dict(vars(arrays.ArrayImpl)) == before
