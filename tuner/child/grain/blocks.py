"""Samples dealt out to workers in blocks: each worker makes whole batches of the script's, and no others.

What is made here goes to processes that know nothing of us: it names nothing of this module, and is sent as its code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_NODES = "grain._src.python.dataset.dataset"


def in_blocks(data: Any, size: int) -> Any:
    """Has ``data`` (a ``MapDataset`` of nobody else's) give to a worker every so-many-th block of this size.

    Grain asks it for a slice: the first of a worker, and how many there are.
    """
    made, kind = _blocks(size), type(data)
    data.__class__ = _class(kind, kind.__name__, {"slice": _sent(_slicing(made))})
    return data


def _slicing(made: Any) -> Callable[[Any, Any], Any]:
    def share(self: Any, sl: Any) -> Any:
        return made(self, sl.start or 0, sl.step or 1)

    return share


def _blocks(size: int) -> type:
    base = sys.modules[_NODES].MapDataset
    whole = base.__init__

    def __init__(self: Any, parent: Any, first: int, step: int) -> None:
        whole(self, parent)
        self._whole, self._first, self._step = len(parent), first, step
        rounds, rest = divmod(self._whole, size * step)
        self._length = rounds * size + min(size, max(0, rest - first * size))

    def __len__(self: Any) -> int:
        return int(self._length)

    def __getitem__(self: Any, index: int) -> Any:
        epoch, place = divmod(index, self._length)
        block, within = divmod(place, size)
        return self._parent[epoch * self._whole + (block * self._step + self._first) * size + within]

    def __str__(self: Any) -> str:
        return f"InBlocks[{self._first}::{self._step}]"

    methods = {each.__name__: _sent(each) for each in (__init__, __len__, __getitem__, __str__)}
    return _class(base, "InBlocks", methods)


def _class(base: type, name: str, methods: dict[str, Callable[..., Any]]) -> type:
    meta: Any = type(base)
    made: type = meta(name, (base,), {"__module__": "__main__", "__qualname__": name, **methods})
    return made


def _sent(function: Callable[..., Any]) -> Callable[..., Any]:
    """Has it sent as its code: what is of the script's main module is, since a worker may not find it by its name."""
    function.__module__, function.__qualname__ = "__main__", function.__name__
    return function
