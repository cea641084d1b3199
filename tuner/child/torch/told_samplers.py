"""Whether a sampler of the script's own may be told of the training, and what it reads of itself as it begins alone.

Workers have it asked ahead: what it is told while they are is heeded by later answers than in the script as written.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import itertools
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

from ..call_sites import is_library
from ..data_state import UNCHANGING
from ..taken import READS, instructions_of, taken_of_first
from .counting import updated_by

# Methods that a sampler may have and that tell it nothing of the training.
_KNOWN_METHODS = ("set_epoch", "state_dict", "load_state_dict")
_BEGINS = ("__iter__", "__len__")
_CALLED_BY_SYNTAX = ("__call__", "__setitem__", "__delitem__", "__iadd__")
"""Of Python's own names those by which a script may tell it something."""
_READERS = frozenset({
    "tolist", "item", "get", "keys", "values", "items", "index", "count", "copy", "sum", "min", "max", "mean", "size",
    "numel", "dim", "format", "join", "split", "startswith", "endswith", "astype", "cpu", "numpy", "clone", "detach",
    "nonzero", "shape",
})  # fmt: skip
"""Methods and attributes of lists, arrays and tensors that change nothing."""
_IN_PLACE = range(13, 26)
"""Arguments of ``BINARY_OP`` that stand for ``+=`` and its like."""
_TAKES = ("LOAD_ATTR", "BINARY_SUBSCR", "BINARY_SLICE")
"""Instructions that take a part of something, which may lie where it did."""
_FIXED = (*UNCHANGING, tuple)
_CHANGERS = frozenset({
    "shuffle", "seed", "manual_seed", "setattr", "delattr", "exec", "eval", "next", "vars", "super",
    "copyto", "put", "place", "putmask", "put_along_axis", "fill_diagonal", "at", "out",
})  # fmt: skip
"""Functions of Python and of libraries that change what they are given, or may, and an argument by which they do."""
_CHANGING_MODULES = ("heapq", "bisect", "operator", "ctypes")
_STORES = ("STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_SUBSCR", "IMPORT_NAME")


def feedback(sampler: object) -> str:
    """Why a sampler of the script's own may learn from the training; "" where nothing says so."""
    file = getattr(sys.modules.get(type(sampler).__module__), "__file__", None)
    if sampler is None or file is None or is_library(file):
        return ""
    own = _own_methods(sampler)
    asked = _reached(own, _BEGINS)
    members = {name: inspect.getattr_static(sampler, name, None) for name in own}  # of a setter there is none
    telling = [name for name, member in members.items() if member is None or isinstance(member, FunctionType)]
    named = [name for name in telling if not name.startswith("_") or name in _CALLED_BY_SYNTAX]
    public = [name for name in named if name not in (*_KNOWN_METHODS, *asked)]
    early = read_at_first(sampler)
    told = next((name for name in public if not _only_reads(name, sampler, own, early)), "")
    return f"{type(sampler).__name__}.{told} may tell it of the training, and workers ask it ahead" if told else ""


def read_at_first(sampler: object) -> frozenset[str]:
    """Its attributes that are read before its first answer, and not again in its iteration."""
    own = _own_methods(sampler)
    gives = own.get("__iter__")
    if gives is None or not gives.__code__.co_argcount:
        return frozenset()
    code = gives.__code__
    itself = code.co_varnames[0]
    taken = taken_of_first(code)
    if taken is None:
        return frozenset()
    late = {name for each in _reached(own, ("__iter__",)) if each != "__iter__" for name in own[each].__code__.co_names}
    for inner in code.co_consts:
        late |= {*inner.co_names} if isinstance(inner, CodeType) and itself in inner.co_freevars else set()
    steps = instructions_of(code)
    begins = _first_answer(steps)
    late |= {each.argval for each in steps if each.offset >= begins and each.opname in ("LOAD_ATTR", "LOAD_METHOD")}
    return frozenset(taken - late)


def _first_answer(steps: list[dis.Instruction]) -> int:
    """The offset as of which a generator may have answered; beyond all of them where it is none."""
    answers = [each.offset for each in steps if each.opname == "YIELD_VALUE"]
    first = min(answers, default=sys.maxsize)
    for each in steps:
        begin = each.argval if "JUMP" in each.opname and isinstance(each.argval, int) else each.offset
        if any(begin <= answer < each.offset for answer in answers):
            first = min(first, begin)
    return first


def _own_methods(sampler: object) -> dict[str, FunctionType]:
    """Name → method of the script's own classes, as the object has it; "NAME.setter" → what sets that property."""
    own: dict[str, FunctionType] = {}
    for cls in reversed(type(sampler).__mro__):
        if cls.__module__.startswith(("torch.", "builtins", "typing")):
            continue
        for name, value in vars(cls).items():
            if isinstance(value, property):
                found = {name: value.fget, f"{name}.setter": value.fset}
            else:
                found = {name: value.__func__ if isinstance(value, (staticmethod, classmethod)) else value}
            own.update({name: each for name, each in found.items() if isinstance(each, FunctionType)})
    return own


def _reached(own: dict[str, FunctionType], names: tuple[str, ...]) -> list[str]:
    """The methods of these names, and those that they name in turn."""
    found = [name for name in names if name in own]
    for name in found:
        found += [called for called in _names(own[name].__code__) if called in own and called not in found]
    return found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _only_reads(name: str, sampler: object, own: dict[str, FunctionType], early: frozenset[str]) -> bool:
    """Whether a method, and those that it calls, change nothing but what the sampler reads ``early``."""
    reached = _reached(own, (name,))
    held = {each for each, value in getattr(sampler, "__dict__", {}).items() if not callable(value)}
    codes = [(own[each].__code__, own[each].__globals__) for each in reached]
    return all(_changes_nothing(code, names, _Itself(code, sampler, {*held, *own}), early) for code, names in codes)


class _Itself:
    """The sampler, as one of its methods names it, and names of what it holds."""

    def __init__(self, method: CodeType, sampler: object, held: set[str]) -> None:
        self.name = method.co_varnames[0] if method.co_argcount else ""
        self._held = held
        self._fixed = {name for name, value in getattr(sampler, "__dict__", {}).items() if isinstance(value, _FIXED)}

    def has(self, before: dis.Instruction | None, attribute: str) -> bool:
        """Whether an attribute is read of the sampler; ``before``: the instruction before the one that reads it.

        What the sampler holds may have methods of the same names: ``update`` says nothing of ``self.weights.update``.
        """
        loaded: object = before.argval if before is not None else None
        if isinstance(loaded, tuple):  # newer Pythons load several variables in one instruction
            loaded = loaded[-1]
        return loaded == self.name and attribute in self._held

    def is_changed_by(self, steps: list[dis.Instruction]) -> bool:
        """Whether ``x += 1`` changes what it holds, and the code has called x: lists and arrays lie where they did."""
        aliases, attribute = set[str](), ""
        for before, each in itertools.pairwise(steps):
            if before.opname == "LOAD_ATTR":
                attribute = before.argval
            if not each.opname.startswith("STORE_FAST"):
                continue
            stored = each.argval[0] if isinstance(each.argval, tuple) else each.argval
            if before.opname == "BINARY_OP" and before.arg in _IN_PLACE:
                if stored in aliases:
                    return True
            elif attribute in self._held - self._fixed and (before.opname in _TAKES or before.argrepr == "[]"):
                aliases.add(stored)
            else:
                aliases.discard(stored)
        return False


def _changes_nothing(
    code: CodeType, held_globals: dict[str, object], itself: _Itself, early: frozenset[str]
) -> bool:
    is_of_module = False
    named = (each for each in code.co_consts if isinstance(each, tuple))
    if updated_by(code) or any("out" in names for names in named):
        return False  # "x.weights += change" changes what an iteration may have read, and so does "out=x.weights"
    steps = instructions_of(code)
    if itself.is_changed_by(steps):
        return False
    for before, each in zip([None, *steps], steps, strict=False):
        name = each.argval
        if each.opname in _STORES or (each.opname == "STORE_ATTR" and name not in early):
            return False
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            known = itself.has(before, name) or name in _READERS or (is_of_module and name not in _CHANGERS)
            if not known or (name.endswith("_") and not name.endswith("__")):
                return False
            continue
        module = held_globals.get(name) if each.opname in READS else None
        is_of_module = isinstance(module, ModuleType)
        if isinstance(module, ModuleType) and not _only_computes(module):
            return False
        if each.opname in READS and not is_of_module and not _is_harmless(name, held_globals):
            return False
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return all(_changes_nothing(each, held_globals, itself, early) for each in inner)


def _only_computes(module: ModuleType) -> bool:
    """Whether a module is a library's whose functions change nothing that they are given, but for ``_CHANGERS``."""
    file = getattr(module, "__file__", None)  # none of what Python has built in
    return module.__name__ not in _CHANGING_MODULES and (file is None or is_library(file))


def _is_harmless(name: str, held_globals: dict[str, object]) -> bool:
    """Whether what a code reads by this name is no function that may change what it is given."""
    value = held_globals.get(name, getattr(builtins, name, None))
    if name in held_globals:
        return not callable(value) or inspect.isclass(value)
    return name not in _CHANGERS
