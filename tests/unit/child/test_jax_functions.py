"""What ``jax.jit`` gives a script under the watch is to it what JAX's own is."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from support.in_process import InProcess
from support.jax_here import jax

from tuner.child.adapter import instrument
from tuner.child.jax.adapter import JaxAdapter
from tuner.child.jax.functions import Jitted, is_foreign
from tuner.child.patches import unpatch_all

jnp = jax.numpy


def double(x: Any, times: int = 2) -> Any:
    """Twice as much."""
    return x * times


@pytest.fixture
def trial() -> Iterator[InProcess]:
    """JAX under the watch."""
    unpatch_all()
    made = InProcess({}, {})
    instrument(made.session, JaxAdapter(made.session), jax)
    yield made
    unpatch_all()


def test_it_looks_like_the_function(trial: InProcess) -> None:
    own, ours = jax.jit.__wrapped__(double, static_argnames="times"), jax.jit(double, static_argnames="times")
    assert isinstance(ours, Jitted) and callable(ours)
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        assert getattr(ours, name) == getattr(own, name) == getattr(double, name)
    assert inspect.signature(ours) == inspect.signature(double)
    assert ours.__wrapped__ is double
    assert repr(ours).startswith("<PjitFunction of")
    assert float(ours(3.0)) == 6.0 and float(ours(3.0, times=5)) == 15.0
    assert ours.lower(3.0).as_text() == own.lower(3.0).as_text()
    assert ours.eval_shape(3.0) == own.eval_shape(3.0)
    assert ours._cache_size() == 2
    ours.clear_cache()
    assert ours._cache_size() == 0


class Scaled:
    """A callable with a state."""

    def __init__(self) -> None:
        self.scale = [3.0]

    def __call__(self, x: Any) -> Any:
        return self.scale[0] * x

    def method(self, x: Any) -> Any:
        return self.scale[0] * x + 1.0


KINDS: dict[str, Callable[[Scaled], tuple[Any, dict[str, Any]]]] = {
    "a function": lambda scaled: (double, {}),
    "with options": lambda scaled: (double, {"static_argnames": "times"}),
    "a method": lambda scaled: (scaled.method, {}),
    "a partial function": lambda scaled: (functools.partial(double, times=3), {}),
    "a callable": lambda scaled: (scaled, {}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_it_is_copied_and_sent_as_jax_s_own(trial: InProcess, kind: str, copied: Callable[[Any], Any]) -> None:
    """What a copy gives, alone and in an object of the script's, also once what it was made of has changed."""

    def tried(jit: Callable[..., Any]) -> list[Any]:
        scaled = Scaled()
        fun, options = KINDS[kind](scaled)
        one = jit(fun, **options)
        held = copied({"step": [one]})["step"][0]
        other = copied(one)
        scaled.scale[0] = 5.0
        seen: list[Any] = [float(each(2.0)) for each in (one, held, other)]
        with pytest.raises((AttributeError, TypeError, pickle.PicklingError)) as raised:
            pickle.dumps(one)
        assert "tuner" not in str(raised.value)
        return [*seen, other is one]

    assert tried(jax.jit) == tried(jax.jit.__wrapped__)


def test_calls_of_a_copy_are_seen(trial: InProcess) -> None:
    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(weights: Any) -> Any:
        return weights - jax.grad(lambda weights: (weights**2).sum())(weights)

    weights = jnp.ones(3)
    for each in (update, copy.deepcopy(update), copy.copy(update)):
        for _ in range(3):
            weights = each(weights)
    assert trial.steps == 9


def test_calls_of_what_pmap_made_for_one_device_and_of_its_copies_are_seen(trial: InProcess) -> None:
    def update(weights: Any, x: Any) -> Any:
        return weights - jax.grad(lambda weights: (weights * x).sum())(weights)

    weights, mapped = jnp.ones((1, 3)), jax.pmap(update)
    for each in (mapped, copy.copy(mapped)):
        for _ in range(3):
            weights = each(weights, jnp.ones((1, 3)))
    assert trial.steps == 6 and weights.tolist() == [[-5.0] * 3]


def test_what_pmap_made_is_copied_as_jax_s_own(trial: InProcess) -> None:
    for pmap in (jax.pmap, jax.pmap.__wrapped__):
        made = pmap(double)
        assert copy.copy(made)(jnp.ones(1)).tolist() == made(jnp.ones(1)).tolist() == [2.0]


def test_a_method_and_a_decorator_with_options_bind_as_ever(trial: InProcess) -> None:
    class Model:
        scale = 3.0

        @functools.partial(jax.jit, static_argnums=0)
        def scaled(self, x: Any) -> Any:
            return self.scale * x

        @staticmethod
        @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
        def plain(x: Any) -> Any:
            return x + 1

    assert float(Model().scaled(2.0)) == 6.0 and float(Model.plain(2.0)) == 3.0
    assert float(jax.jit(static_argnames="times")(double)(2.0, times=4)) == 8.0


def test_transformations_go_through_it(trial: InProcess) -> None:
    ours = jax.jit(double)
    assert float(jax.grad(ours)(1.0)) == 2.0
    assert jax.vmap(ours)(jnp.arange(3.0)).tolist() == [0.0, 2.0, 4.0]
    assert float(jax.jit(ours)(2.0)) == 4.0
    assert jax.eval_shape(ours, 2.0).shape == ()
    assert str(jax.make_jaxpr(ours)(2.0)) == str(jax.make_jaxpr(jax.jit.__wrapped__(double))(2.0))


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"with options"}))
def test_what_is_compiled_again_is_traced_once(trial: InProcess, kind: str) -> None:
    """JAX goes by the function: what is given to it in its place is made once, and lives as long."""

    def traces(jit: Callable[..., Any], scan: Callable[..., Any]) -> int:
        traced = []

        class Counting(Scaled):
            def __call__(self, x: Any, _: Any = None, times: int = 2) -> Any:
                traced.append(x)
                return x * times, x

            method = __call__

        def counted(x: Any, _: Any = None, times: int = 2) -> Any:
            traced.append(x)
            return x * times, x

        own, scaled = {"a function": counted, "a partial function": functools.partial(counted, times=3)}, Counting()
        fun: Any = own.get(kind, scaled.method if kind == "a method" else scaled)
        for _ in range(5):
            jit(fun)(1.0)
        for _ in range(5):
            scan(fun, 1.0, jnp.ones(3))
        return len(traced)

    own = traces(jax.jit.__wrapped__, jax.lax.scan.__wrapped__)
    assert traces(jax.jit, jax.lax.scan) == own == 2


class Trainer:
    def update(self, weights: Any) -> Any:
        return weights - jax.grad(lambda weights: (weights**2).sum())(weights)


@pytest.mark.parametrize("again", ["a partial in each epoch", "a method in each epoch", "two of a method", "copied"])
def test_steps_of_what_is_compiled_again_are_counted(trial: InProcess, again: str) -> None:
    """JAX has kept its trace, and shows nothing."""
    trainer = Trainer()
    fun = functools.partial(Trainer.update, trainer) if again == "a partial in each epoch" else trainer.update
    first = jax.jit(fun)
    made = {"two of a method": lambda: jax.jit(trainer.update), "copied": lambda: copy.copy(first)}
    weights, held = jnp.ones(3), [first]
    for _ in range(4):
        step = made.get(again, lambda: jax.jit(fun))()
        held.append(step)
        for _ in range(5):
            weights = step(weights)
    assert trial.steps == 20


def test_a_function_is_held_no_longer_than_under_plain_python(trial: InProcess) -> None:
    """With what it closes over, and without a collection of cycles."""

    def trained_on(held: Any, jit: Callable[..., Any], scan: Callable[..., Any]) -> None:
        jit(lambda x: x + held)(1.0)
        scan(lambda x, _: (x + held.sum(), None), 1.0, jnp.ones(3))

    def leaves(jit: Callable[..., Any], scan: Callable[..., Any]) -> bool:
        held = jnp.ones(1000)
        trained_on(held, jit, scan)
        reference = weakref.ref(held)
        del held
        return reference() is None

    gc.disable()
    try:
        plain = leaves(jax.jit.__wrapped__, jax.lax.scan.__wrapped__)
        assert leaves(jax.jit, jax.lax.scan) == plain
        assert leaves(jax.jit, lambda *_: None)
    finally:
        gc.enable()


def test_nothing_is_found_in_a_function(trial: InProcess) -> None:
    """A library that sends functions sends what is in them, too."""

    def plain(x: Any, times: int = 2) -> Any:
        return x * times

    made = jax.jit(plain, static_argnames="times")
    assert float(made(2.0, times=4)) == 8.0
    jax.lax.scan(lambda x, y: (x, y), 1.0, jnp.ones(3))
    assert vars(plain) == {}


def test_what_keras_compiles_is_left_alone(trial: InProcess) -> None:
    def step(x: Any) -> Any:
        return x

    assert not is_foreign(step)
    step.__module__ = "keras.src.backend.jax.trainer"
    assert is_foreign(step) and is_foreign(functools.partial(step, 1))
    assert not isinstance(jax.jit(step), Jitted)


def test_all_is_put_back() -> None:
    before = (jax.jit, jax.grad, jax.value_and_grad, jax.pmap, jax.lax.scan, jax.random.PRNGKey)
    made = InProcess({}, {}, seed=3)
    instrument(made.session, JaxAdapter(made.session), jax)
    assert jax.jit is not before[0] and jax.random.PRNGKey is not before[5]
    unpatch_all()
    assert (jax.jit, jax.grad, jax.value_and_grad, jax.pmap, jax.lax.scan, jax.random.PRNGKey) == before


def test_seeds_are_shifted_alike() -> None:
    plain = jax.random.key_data(jax.random.key(7)).tolist()
    made = InProcess({}, {}, seed=3)
    instrument(made.session, JaxAdapter(made.session), jax)
    try:
        assert jax.random.key_data(jax.random.key(4)).tolist() == plain
        assert jax.random.PRNGKey(seed=4).tolist() == plain
        for kind in (numpy.int64, numpy.uint32):
            assert jax.random.PRNGKey(kind(4)).tolist() == plain
            assert jax.random.key_data(jax.random.key(seed=kind(4))).tolist() == plain
    finally:
        unpatch_all()
