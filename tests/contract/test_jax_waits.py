"""Waiting for JAX really waits: a long computation isn't counted as done, and nothing is kept alive for it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from support.in_process import InProcess
from support.jax_here import jax

from tuner.child.adapter import instrument
from tuner.child.jax.adapter import JaxAdapter
from tuner.child.patches import unpatch_all

jnp = jax.numpy


@pytest.fixture
def begun() -> Iterator[tuple[InProcess, JaxAdapter]]:
    """A trial, and its adapter."""
    unpatch_all()
    made = InProcess({}, {})
    adapter = JaxAdapter(made.session)
    instrument(made.session, adapter, jax)
    yield made, adapter
    unpatch_all()


def long_step() -> Any:
    """A step that takes a while, and its first weights."""
    wide = jnp.ones((900, 900)) / 900

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(weights: Any) -> Any:
        gradient = jax.grad(lambda weights: (weights * wide).sum())(weights)
        return jax.lax.fori_loop(0, 20, lambda number, made: made @ wide, weights - gradient)

    return update, wide


def test_waiting_waits_until_the_newest_step_is_done(begun: tuple[InProcess, JaxAdapter]) -> None:
    trial, adapter = begun
    update, weights = long_step()
    left = 0
    for _ in range(4):
        weights = update(weights)
        left += not weights.is_ready()
        adapter.synchronize()
        assert weights.is_ready()
    assert left, "nothing was left to wait for"
    assert trial.steps >= 3


def test_what_a_step_gave_lives_no_longer_than_the_script_has_it(begun: tuple[InProcess, JaxAdapter]) -> None:
    trial, _ = begun
    update, weights = long_step()
    gone = []
    for _ in range(9):
        gone.append(weakref.ref(weights))
        weights = update(weights)
    weights.block_until_ready()
    gc.collect()
    assert [number for number, made in enumerate(gone[1:], 1) if made() is not None] == []
    assert trial.steps >= 8
