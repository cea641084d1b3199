"""What a DataLoader is given to load: how long it is, and whether worker processes may load it."""

from __future__ import annotations

import builtins
import inspect
import itertools
import random
import weakref
from collections.abc import Callable, Iterator, Sized
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import cast

from ..call_sites import codes, is_library
from ..data_state import values
from ..taken import instructions_of, taken_by
from .reached import functions, variables_in

_PASSING = frozenset({
    "iter", "next", "map", "filter", "zip", "enumerate", "len", "isinstance", "int", "float", "StopIteration",
})  # fmt: skip
"""Functions of Python's that give nothing but what they are given."""
_OF_NO_DATA = frozenset({"random", "math", "copy", "time", "numpy", "torch"})
"""Modules that a stream may name and that have no data of their own."""
_NUMBER = "num_workers"
"""What PyTorch names how many workers there are."""


def reference(dataset: object) -> Callable[[], object]:
    """The dataset as long as it lives; a list, say, can't be referred to weakly and is never recognised."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return object  # a new one with each call: identical to nothing


def length(dataset: object) -> int | None:
    """Its samples; None where it can't tell."""
    try:
        return len(cast("Sized", dataset))
    except Exception:  # none, or the user's own, which may raise anything
        return None


def shards_itself(dataset: object) -> bool:
    """Whether the dataset's ``__iter__`` asks for ``get_worker_info``, as PyTorch's documentation demands, and for how
    many workers there are: what only seeds itself by the worker's number gives as many samples in each of them.

    A chain of datasets shards itself where each of them does. PyTorch's own pipes do so only with a filter among them,
    which the loader's process can't see: they count as such that don't.
    """
    if type(dataset).__module__.startswith("torch.") and type(dataset).__name__ == "ChainDataset":
        return all(shards_itself(part) for part in dataset.datasets)  # type: ignore[attr-defined]  # PyTorch's own
    begins = getattr(type(dataset), "__iter__", None)
    if is_library(getattr(getattr(begins, "__code__", None), "co_filename", "")):
        return "get_worker_info" in begins.__code__.co_names  # type: ignore[union-attr]  # it has a code
    held = {path: value for path, value, _ in values({"dataset": dataset})}
    if _only_passes_on(dataset):
        return True
    asked = any("get_worker_info" in names for _, names in functions([dataset], ("__iter__",)))
    reading = [(function.__code__, names) for function, names in functions(held.values(), ("__iter__",))]
    if not asked or not any(_NUMBER in names or _tells(code) for code, names in reading):
        return False
    is_told = any(path.endswith(f".{_NUMBER}") and type(value) is int for path, value in held.items())
    uses = {use for code, _ in reading for use in _uses_of_its_own(code)}
    return not is_told or uses != {"LOAD_ATTR"}


def _only_passes_on(dataset: object) -> bool:
    """Whether its ``__iter__`` has nothing to give but what streams give that share themselves out, be it changed."""
    gives = getattr(dataset, "__iter__", None)
    taken = taken_by(gives) if isinstance(gives, MethodType) else None
    if not taken or not isinstance(gives, MethodType):
        return False
    code, named = gives.__func__.__code__, gives.__func__.__globals__
    made_of = {name: named.get(name, getattr(builtins, name, None)) for name in variables_in(code)}
    by_itself = [name for name, value in made_of.items() if not _gives_nothing(value) and name not in _PASSING]
    if by_itself or any(isinstance(getattr(type(dataset), name, None), FunctionType) for name in code.co_names):
        return False
    parts = [part for part in taken.values() if not _gives_nothing(part)]
    return bool(parts) and all(hasattr(type(part), "__iter__") and shards_itself(part) for part in parts)


def _gives_nothing(value: object) -> bool:
    """Whether no data can come of it by themselves: a number, a module of random numbers, a function of an
    item.
    """
    if isinstance(value, FunctionType):
        return bool(value.__code__.co_argcount) and not value.__code__.co_flags & inspect.CO_GENERATOR
    if isinstance(value, ModuleType):
        return value.__name__ in _OF_NO_DATA
    is_change = callable(value) and not any(hasattr(type(value), name) for name in ("__iter__", "__getitem__"))
    is_change &= type(value).__module__ != "builtins"
    return value is None or is_change or isinstance(value, (bool, int, float, random.Random))


def _uses_of_its_own(code: CodeType) -> Iterator[str]:
    """Instructions by which a method's code reads, or sets, a number of workers that its object holds: a number that
    the script gave, which stays what it is with more of them.
    """
    owner = code.co_varnames[0] if code.co_varnames else None
    for last, step in itertools.pairwise(instructions_of(code)):
        if step.argval == _NUMBER and last.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and last.argval == owner:
            yield step.opname


def _tells(code: CodeType) -> bool:
    """Whether it has the name in a string: ``getattr(worker, "num_workers", 1)``."""
    return any(_NUMBER in each.co_consts for each in codes(code))
