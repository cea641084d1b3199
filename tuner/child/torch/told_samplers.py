"""Whether a sampler of the script's own may be told of the training, and what it reads of itself as it begins alone.

Workers have it asked ahead: what it is told while they are is heeded by later answers than in the script as written.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

from ..call_sites import is_library
from ..taken import BETWEEN, READS, taken_of_first
from .counting import updated_by

# Methods that a sampler may have and that tell it nothing of the training.
_KNOWN_METHODS = ("set_epoch", "state_dict", "load_state_dict")
_BEGINS = ("__iter__", "__len__")
_READERS = frozenset({
    "tolist", "item", "get", "keys", "values", "items", "index", "count", "copy", "sum", "min", "max", "mean", "size",
    "numel", "dim", "format", "join", "split", "startswith", "endswith", "astype", "cpu", "numpy", "clone", "detach",
    "nonzero", "shape",
})  # fmt: skip
"""Methods and attributes of lists, arrays and tensors that change nothing."""
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
    public = [name for name in own if not name.startswith("_") and name not in (*_KNOWN_METHODS, *asked)]
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
    steps = [each for each in dis.get_instructions(code) if each.opname not in BETWEEN]
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
    """Name → method of the script's own classes, as the object has it."""
    own: dict[str, FunctionType] = {}
    for cls in reversed(type(sampler).__mro__):
        if not cls.__module__.startswith(("torch.", "builtins", "typing")):
            own.update({name: value for name, value in vars(cls).items() if isinstance(value, FunctionType)})
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
    held = {*getattr(sampler, "__dict__", {}), *own}
    return all(_changes_nothing(own[each].__code__, own[each].__globals__, held, early) for each in reached)


def _changes_nothing(code: CodeType, held_globals: dict[str, object], held: set[str], early: frozenset[str]) -> bool:
    is_of_module = False
    named = (each for each in code.co_consts if isinstance(each, tuple))
    if updated_by(code) or any("out" in names for names in named):
        return False  # "x.weights += change" changes what an iteration may have read, and so does "out=x.weights"
    for each in dis.get_instructions(code):
        if each.opname in BETWEEN:
            continue
        name = each.argval
        if each.opname in _STORES or (each.opname == "STORE_ATTR" and name not in early):
            return False
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            known = name in held or name in _READERS or (is_of_module and name not in _CHANGERS)
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
    return all(_changes_nothing(each, held_globals, held, early) for each in inner)


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
