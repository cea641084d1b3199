"""Which arguments of a call hold its batch: by where arrays come from, on arrays of NumPy and stand-ins for JAX's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest

from tuner.child.jax.rows import LOOKS, Found, Outputs, Rows, agreed


@dataclass(eq=False)
class Made:
    """An array of JAX's."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    of: list[int] = field(default_factory=list)


def leaves(value: Any) -> list[Any]:
    """What is in a tuple, a list or a dictionary, the entries of this in their order."""
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    if isinstance(value, (tuple, list)):
        return [leaf for each in value for leaf in leaves(each)]
    return [] if value is None else [value]


class Function:
    """A step: its state goes round, and batches come in."""

    def __init__(self) -> None:
        self.outputs = Outputs(leaves)
        self.rows = Rows(leaves, self.outputs)
        self.calls = 0
        self.parameters = {((8, 4), "float32")}

    def call(self, *args: Any, result: Any, **kwargs: Any) -> int | None:
        """The samples of a call."""
        if self.calls:
            found = self.rows.of(args, kwargs, self.parameters)
        else:
            found = self.rows.first(args, kwargs, result, self.parameters)
        self.calls += 1
        self.outputs.put(self, result)
        return agreed(found)


def batch(size: int, *shape: int) -> Any:
    return numpy.zeros((size, *shape), "float32")


@pytest.mark.parametrize("statistics", [(), (5,), (64,)], ids=["none", "few", "as many as samples"])
def test_state_goes_round_and_a_batch_is_new(statistics: tuple[int, ...]) -> None:
    """Also what has no parameter's shape: a running mean, an average of the weights."""
    function = Function()
    state = {"weights": Made((8, 4)), "mean": Made(statistics), "step": Made(())}
    for number in range(2 * LOOKS + 4):
        given, size = state, 64 if number % 5 else 17
        state = {name: Made(leaf.shape) for name, leaf in given.items()}
        keys = Made((2,), "uint32")
        loss = Made(())
        samples = function.call(given, keys, result=(state, loss), x=batch(size, 3, 3), y=batch(size))
        assert samples == size, number
    assert not function.rows.is_learning


@pytest.mark.parametrize("mapped", [False, True])
def test_parameters_that_are_made_outside_are_no_batch(mapped: bool) -> None:
    """A compiled gradient, and updates by hand: they are new with each call. Where mapped, a trace sees no device."""
    function = Function()
    function.rows.devices = int(mapped)
    device = (1,) if mapped else ()
    for _ in range(LOOKS + 4):
        params, rate = Made((*device, 8, 4)), Made(device)
        assert function.call(params, rate, batch(*device, 20, 8), result=Made((*device, 8, 4))) == 20
    assert not function.rows.is_learning


def test_parameters_of_the_devices_together_are_no_batch() -> None:
    """``in_axes=None``: they have no dimension for devices, but may have one of one."""
    function = Function()
    function.rows.devices, function.parameters = 1, {((1, 4), "float32")}
    for _ in range(LOOKS + 4):
        assert function.call(Made((1, 4)), batch(1, 20, 8), result=Made((1, 1, 4))) == 20


def test_data_that_stay_the_same_are_a_batch_where_nothing_else_is() -> None:
    data, state = (Made((100, 8)), Made((100,), "int32")), Made((8, 4))
    function = Function()
    for _ in range(LOOKS + 4):
        given, state = state, Made((8, 4))
        assert function.call(given, data, result=state) == 100


def test_indices_into_data_that_stay_are_the_batch() -> None:
    data, state = Made((1000, 8)), Made((8, 4))
    function = Function()
    found = []
    for _ in range(LOOKS + 4):
        given, state = state, Made((8, 4))
        found.append(function.call(given, data, numpy.arange(32), result=state))
    assert set(found[1:]) == {32}


def test_where_lengths_differ_nothing_is_counted() -> None:
    assert agreed([Found(0, (64, 8)), Found(1, (16, 8))]) is None
    assert agreed([Found(0, (64, 8)), Found(1, (64,)), Found(2, (3,))]) == 64
    assert agreed([]) is None


@pytest.mark.parametrize("size", [1, 20, 32, 64, 100, 256])
def test_an_array_that_is_filled_anew_is_not_the_same(size: int) -> None:
    """Also where its border is black."""
    images, function = batch(size, 28, 28), Function()
    found = [function.rows.of((images,), {}, function.parameters) for _ in range(2)]
    images[:, 4:-4, 4:-4] = 1
    found.append(function.rows.of((images,), {}, function.parameters))
    (first,), (again,), (other,) = found
    assert again.is_same(first) and not other.is_same(first)


def test_a_call_with_other_arguments_is_looked_at_anew() -> None:
    function, state = Function(), Made((8, 4))
    for number in range(3 * LOOKS):
        given, state = state, Made((8, 4))
        if number < 2 * LOOKS:
            assert function.call(given, batch(64, 8), batch(64), result=state) == 64
        else:
            assert function.call(given, {"x": batch(32, 8), "y": batch(32)}, result=state) == 32
    assert function.rows.changes == 1


def test_whoever_gave_an_array_is_known_until_it_gives_anew() -> None:
    outputs, first, second = Outputs(leaves), Function(), Function()
    state = Made((8, 4))
    outputs.put(first, {"state": state, "step": Made(())})
    outputs.put(second, (Made((8, 4)),))
    assert outputs.giver_of(state) is first and outputs.hold(state)
    assert outputs.giver_of(Made((8, 4))) is None
    outputs.put(first, Made((8, 4)))
    assert not outputs.hold(state)


@pytest.mark.slow  # 2 s beside three others
def test_nothing_is_kept_alive() -> None:
    import gc
    import weakref

    function, state = Function(), Made((8, 4))
    first, held = weakref.ref(state), batch(64, 8)
    for _ in range(3):
        given, state = state, Made((8, 4))
        function.call(given, held, result=state)
    del given
    gc.collect()
    assert first() is None
