"""Whether an argument's arrays are held by the variable that was given, and by nothing else: by counts of references.

Whatever may still read an array holds a reference to it: another variable, a list, an average that began as the
parameters themselves, a thread that saves it. Of the parts of a structure the same is asked, since who holds one
reaches its arrays. How many references a call itself makes is found out by calls of the same kind.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from .types import Arguments, Keywords

ARE_COUNTED = sys.implementation.name == "cpython" and sys.version_info < (3, 14) and not sysconfig.get_config_var(
    "Py_GIL_DISABLED"
)  # fmt: skip
"""From Python 3.14 on a call may borrow the references of its caller, and without a GIL they are counted in parts."""
HELD = "the script holds what it gives to the training step in another place, too"
OTHER_PARTS = "what the training step is given of its own results isn't made of JAX's arrays alone"
UNSEEN = "the training step's state is made of {}, whose parts can't be seen"
_PARTS = "addressable_shards"
_DICTIONARIES = frozenset({dict, OrderedDict, defaultdict})


class NotAloneError(Exception):
    """An array has another holder, or may have one."""


def counts_of(values: Collection[Any]) -> list[int]:
    """References to each of what a container holds: its own, and one that the count makes."""
    return list(map(sys.getrefcount, values))


ONCE = counts_of([object()])[0]
"""Of what is held by its container alone."""


class Holders:
    """``array``: the class of JAX's arrays; ``registry``: JAX's own of what structures are made of."""

    def __init__(self, array: type, registry: Any) -> None:
        self._array = array
        self._registry = registry
        self._usual = _usual_of(_Called())

    def are_held_once(self, args: Arguments, kwargs: Keywords) -> dict[int | str, bool]:
        """Of each argument of a call that is under way, whether a variable of its caller is all that holds it."""
        by_number, by_name = self._usual[bool(kwargs)]
        held: dict[int | str, bool] = {number: count <= by_number for number, count in enumerate(counts_of(args))}
        held |= {name: count <= by_name for name, count in zip(kwargs, counts_of(kwargs.values()), strict=True)}
        return held

    def arrays_in(self, node: Any) -> list[Any]:
        """The arrays of a structure. Raises ``NotAloneError`` where one, or what leads to one, is held elsewhere, too.

        Who holds the structure itself isn't asked here.
        """
        if type(node) is self._array:
            return [self._whole(node)]
        if node is None:
            return []
        most, own = ONCE, None
        if type(node) in _DICTIONARIES:
            parts: Collection[Any] = node.values()
        elif isinstance(node, (list, tuple)):
            parts = node
        elif hasattr(node, "_base_array"):  # a key for random numbers
            return self._key(node)
        else:
            parts, own = self._attributes(node)
            most += 1  # what JAX gives them in holds them, too
        found = list[Any]()
        for part, count in zip(parts, counts_of(parts), strict=True):
            arrays = self.arrays_in(part)
            if arrays and count > most:
                raise NotAloneError(HELD)
            if arrays and own is not None and id(part) not in own:
                raise NotAloneError(UNSEEN.format(type(node).__name__))
            found += arrays
        return found

    def _key(self, key: Any) -> list[Any]:
        base = key._base_array
        if type(base) is not self._array or sys.getrefcount(base) > ONCE + 1:  # by the key, and here
            raise NotAloneError(HELD)
        self._whole(base)
        return [key]

    def _whole(self, array: Any) -> Any:
        """The array, where nothing was given its parts, which it keeps: of several devices, and in JAX 0.5 of one."""
        if _PARTS in array.__dict__:
            raise NotAloneError(HELD)
        return array

    def _attributes(self, node: Any) -> tuple[Sequence[Any], set[int]]:
        """The parts of an object that JAX knows as a structure, and the identities of what its attributes hold."""
        made = self._registry.flatten_one_level(node)
        if made is None:
            raise NotAloneError(OTHER_PARTS)
        if not hasattr(node, "__dict__"):
            raise NotAloneError(UNSEEN.format(type(node).__name__))
        parts = made[0] if isinstance(made[0], (list, tuple)) else tuple(made[0])
        return parts, set(map(id, vars(node).values()))


class _Called:
    """Is called as the script calls what stands for a compiled function."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self._count(args, kwargs)

    def _count(self, args: Arguments, kwargs: Keywords) -> tuple[int, int]:
        """References to the first argument, and to a named one."""
        return counts_of(args)[0], (counts_of(kwargs.values()) or [0])[0]


def _usual_of(call: _Called) -> dict[bool, tuple[int, int]]:
    """References to variables that a call is given by position, and by name; by whether it is given any by name."""
    first, second = object(), object()
    alone = call(first)
    both = call(first, second=second)
    return {False: alone, True: both}
