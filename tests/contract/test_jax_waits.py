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
        return jax.lax.fori_loop(0, 6, lambda number, made: made @ wide, weights - gradient)

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


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=pytest.mark.slow), False])
def test_waiting_waits_for_updates_by_hand(begun: tuple[InProcess, JaxAdapter], compiled: bool) -> None:
    """A step ends there as the next gradient begins; what the gradient gave is gone by then."""
    trial, adapter = begun
    wide = jnp.ones((900, 900)) / 900
    gradient = jax.grad(lambda weights: (weights * wide).sum())
    gradient = jax.jit(gradient) if compiled else gradient
    heavy = jax.jit.__wrapped__(
        lambda weights, gradient: jax.lax.fori_loop(0, 6, lambda number, made: made @ wide, weights - gradient)
    )
    left, waited = list[bool](), list[bool]()

    def step(framework: str, count: int = 1) -> None:
        left.append(not weights.is_ready())
        adapter.synchronize()
        waited.append(weights.is_ready())

    trial.session.step = step  # type: ignore[method-assign]  # what a block's end does, with each step
    weights = wide
    for _ in range(5):
        weights = heavy(weights, gradient(weights))
    assert any(left), "nothing was left to wait for"
    assert len(waited) == 4 and all(waited)


def test_waiting_waits_for_what_does_not_lead(begun: tuple[InProcess, JaxAdapter]) -> None:
    """Two that take turns, of which the first one's steps are counted: neither waits for the other."""
    _, adapter = begun
    (first, wide), (second, _) = long_step(), long_step()
    one = other = wide
    left = 0
    for _ in range(3):
        other = second(other)
        one = first(one)
        left += not other.is_ready()
        adapter.synchronize()
        assert one.is_ready() and other.is_ready()
    assert left, "nothing was left to wait for"


@pytest.mark.slow  # 2 s beside three others
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
