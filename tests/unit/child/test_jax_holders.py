"""Who holds the arrays of a call's arguments, by counts of references."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
from support.jax_here import jax

from tuner.child.jax.holders import HELD, OTHER_PARTS, UNSEEN, Holders, NotAloneError

jnp = jax.numpy
HOLDERS = Holders(sys.modules["jax._src.array"].ArrayImpl, jax.tree_util.default_registry)
Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class State:
    """As Flax' training states are."""

    params: Any
    step: Any
    name: str = dataclasses.field(metadata={"static": True}, default="state")


class Hiding:
    """A structure whose parts lie in another one, which nobody knows of."""

    def __init__(self, *parts: Any) -> None:
        self.inner = list(parts)


jax.tree_util.register_dataclass(State, ["params", "step"], ["name"])
jax.tree_util.register_pytree_node(Hiding, lambda each: (tuple(each.inner), None), lambda _, parts: Hiding(*parts))


class Called:
    """Is called as what stands for a compiled function is; tells which arguments are held once."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[int | str, bool]:
        return HOLDERS.are_held_once(args, kwargs)


call = Called()
SOURCE = """
a, b, c = [0], {1: 1}, (2, [])
plain = call(a, b)
named = call(a, b, c=c)
alone = call(c=c)
other = a
held = call(a, b)
kept = {"b": b}
both = call(a, b=b)
"""


@pytest.mark.parametrize("is_local", [False, True])
def test_arguments_that_a_variable_alone_holds(is_local: bool) -> None:
    """Of a function and of a module: they keep their variables in different places."""
    source = "def main():" + SOURCE.replace("\n", "\n    ") + "return locals()\nfound = main()" if is_local else SOURCE
    names: dict[str, Any] = {"call": call}
    exec(source, names)
    found = names.get("found", names)
    assert found["plain"] == {0: True, 1: True} and found["alone"] == {"c": True}
    assert found["named"] == {0: True, 1: True, "c": True}
    assert found["held"] == {0: False, 1: True}
    assert found["both"] == {0: False, "b": False}


def test_an_argument_of_a_caller_that_its_own_caller_holds_too() -> None:
    def inner(value: Any) -> dict[int | str, bool]:
        return call(value)

    kept = [0]
    assert inner(kept) == {0: False}
    assert kept


MAKE: dict[str, Callable[[], Any]] = {
    "an array": lambda: jnp.ones(3),
    "a dictionary": lambda: {"w": jnp.ones(3), "b": [jnp.ones(2), None, ()]},
    "a named tuple": lambda: Pair(jnp.ones(3), (jnp.ones(2), OrderedDict(a=jnp.ones(1)))),
    "a state": lambda: State({"w": jnp.ones(3)}, jnp.zeros((), "int32")),
    "a key": lambda: {"key": jax.random.key(0)},
}


@pytest.mark.parametrize("kind", MAKE)
def test_arrays_of_a_structure(kind: str) -> None:
    made = MAKE[kind]()
    leaves = jax.tree_util.tree_leaves(made)
    found = {id(leaf) for leaf in leaves}
    if kind == "an array":
        assert HOLDERS.arrays_in(made) == leaves
        return
    with pytest.raises(NotAloneError, match=HELD):
        HOLDERS.arrays_in(made)  # those leaves hold them
    del leaves
    assert {id(leaf) for leaf in HOLDERS.arrays_in(made)} == found


PARTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "an array in a dictionary": (MAKE["a dictionary"], lambda made: made["w"]),
    "an array deep within": (MAKE["a named tuple"], lambda made: made.second[1]["a"]),
    "a list with an array": (MAKE["a dictionary"], lambda made: made["b"]),
    "the parameters of a state": (MAKE["a state"], lambda made: made.params),
    "a number of a state": (MAKE["a state"], lambda made: made.step),
    "what is in a key": (MAKE["a key"], lambda made: made["key"]._base_array),
    "its dictionary's values": (MAKE["a dictionary"], lambda made: list(made.values())),
    "a copy of the dictionary": (MAKE["a dictionary"], dict),
    "the same structure, made anew": (MAKE["a state"], lambda made: jax.tree_util.tree_map(lambda x: x, made)),
    "a view of NumPy's by the protocol of buffers": (MAKE["a dictionary"], lambda made: memoryview(made["w"])),
}


@pytest.mark.parametrize("kind", PARTS)
def test_what_holds_a_part_is_seen_until_it_lets_go(kind: str) -> None:
    make, take = PARTS[kind]
    made = make()
    taken = take(made)
    with pytest.raises(NotAloneError, match=HELD):
        HOLDERS.arrays_in(made)
    del taken
    assert HOLDERS.arrays_in(made)


def test_one_array_in_two_places_is_held_twice() -> None:
    array = jnp.ones(3)
    made = [array, (array,)]
    del array
    with pytest.raises(NotAloneError, match=HELD):
        HOLDERS.arrays_in(made)


def test_what_isnt_made_of_arrays_alone_or_hides_them() -> None:
    for other in (1.5, {"w": jnp.ones(3), "steps": 4}, [jnp.ones(3).__array__()], State(jnp.ones(3), 0)):
        with pytest.raises(NotAloneError, match=OTHER_PARTS):
            HOLDERS.arrays_in(other)
    with pytest.raises(NotAloneError, match=UNSEEN.format("Hiding")):
        HOLDERS.arrays_in(Hiding(jnp.ones(3)))
    assert HOLDERS.arrays_in(()) == HOLDERS.arrays_in(None) == []
