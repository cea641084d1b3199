"""What the code of modules, or of data, reaches past them: globals of the script's and variables around it, by name.

Nothing is called, and nothing of the code is run: a name that stands in it is taken for a global of that name.
"""

from __future__ import annotations

import dis
import itertools
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ..call_sites import codes
from ..call_sites import is_library as lies_in_library
from ..data_state import UNCHANGING, answers
from ..taken import READS, instructions_of, taken_of

_LIBRARIES = ("torch", "numpy", "builtins", __name__.partition(".")[0])
"""Libraries, and this package, whose functions aren't followed: what they keep isn't the script's."""
_MOST_FUNCTIONS = 256
IGNORED = (type, ModuleType, BuiltinFunctionType)
"""What nothing is kept in that a script would change."""
_OF_GLOBALS = ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME")
_IMPORTS = ("IMPORT_NAME", "IMPORT_FROM")
_APART = (
    "__init__", "__new__", "__post_init__", "__del__", "__repr__", "__str__", "__getstate__", "__setstate__",
    "__eq__", "__ne__", "__hash__",
)  # fmt: skip
"""Methods that Python calls when data are made, shown, compared, and handed to another process."""
OPTIONS = {"argparse": ("Namespace",), "types": ("SimpleNamespace",)}
"""Module → classes whose objects are nothing but attributes that a script sets."""
_OF_PYTHON = ("abc", "typing", "collections.abc")
"""Modules of base classes, which read nothing of the data by themselves."""
_OF_ANY_NAME = frozenset({"getattr", "vars", "__dict__", "asdict", "attrgetter", "__getattribute__", "astuple"})
"""Names by which code reads attributes whose names it doesn't hold."""
_SEEDED_BY = ("torch", "random", "cuda", "default_generator")
"""Names by which a script reaches PyTorch's function, or the generator that its process has."""
_variables: weakref.WeakKeyDictionary[CodeType, tuple[str, ...]] = weakref.WeakKeyDictionary()
_names: weakref.WeakKeyDictionary[CodeType, tuple[str, ...]] = weakref.WeakKeyDictionary()


def reached(objects: Iterable[Any], methods: Sequence[str] = ("forward",)) -> Iterator[object]:
    """The values that these functions, or methods of these objects, name, and those that the functions that they name
    do in turn.
    """
    for function, names in functions(objects, methods):
        held: Mapping[str, object] = function.__globals__
        for value in [*around(function), *(held[name] for name in names if name in held)]:
            if _function(value) is None and not isinstance(value, IGNORED):
                yield value


def class_attributes(value: object) -> dict[str, object]:
    """What a class of the script's own holds but methods: scripts keep settings so (``CFG.rng``). Else nothing."""
    found: dict[str, object] = {}
    for cls in reversed(value.__mro__) if isinstance(value, type) else ():
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if file is not None and not lies_in_library(file):
            members = vars(cls).items()
            found.update({name: own for name, own in members if not (name.startswith("__") or hasattr(own, "__get__"))})
    return found


def uses(holder: object, attribute: str, among: Collection[str] | None = None) -> bool:
    """Whether a method of the object but its constructor names this attribute; unknown counts as used.

    ``among``: the names in all code that is asked about, None where these aren't known.
    """
    if not attribute.isidentifier():
        return True
    classes = [cls for cls in type(holder).__mro__ if cls is not object]
    methods = [value for cls in classes for name, value in vars(cls).items() if name != "__init__"]
    own = [method.__code__ for method in methods if isinstance(method, FunctionType)]
    return not own or any(attribute in code.co_names and (among is None or attribute in among) for code in own)


def names_read(objects: Sequence[Any], methods: Sequence[str]) -> Collection[str] | None:
    """The names in the code by which objects are read: in methods of these names, in those that Python calls by itself,
    and in all methods of the objects that any of this names. None where it may call others, or is too much.
    """
    objects = [each for each in objects if type(each).__name__ not in OPTIONS.get(type(each).__module__, ())]
    kinds = dict.fromkeys(cls for kind in dict.fromkeys(map(type, objects)) for cls in kind.__mro__)
    own = [vars(cls) for cls in kinds if cls.__module__ not in _OF_PYTHON and not is_library(cls.__module__)]
    known = {*methods, *(name for held in own for name in held if name.startswith("__") and name not in _APART)}
    while True:
        code = [names for _, names in functions(objects, tuple(known))]
        found = {name for names in code for name in names}
        if len(code) >= _MOST_FUNCTIONS or not _OF_ANY_NAME.isdisjoint(found):
            return None
        if found <= known:
            return known
        known |= found




@dataclass(frozen=True)
class Named:
    """A variable that the script's own code reads, and what of it. ``names``: all names in that code."""

    name: str
    value: object
    names: frozenset[str]
    taken: frozenset[str] | None
    """Its attributes and its keys by constants, where the code reads nothing else of it; None where it does."""


def named(objects: Iterable[Any], methods: Sequence[str]) -> Iterator[Named]:
    """As ``reached``, of what the script's own code reads as a variable.

    A data set's ``self.train`` is no function ``train`` of the script's.
    """
    for function, names in functions(objects, methods, variables_in):
        if lies_in_library(function.__code__.co_filename):
            continue
        held: Mapping[str, object] = function.__globals__
        read = {name: held[name] for name in variables_in(function.__code__) if name in held}
        for name, value in {**_defaults(function), **dict(_around(function)), **read}.items():
            if not answers(value):
                continue
            has_parts = _function(value) is None or getattr(value, "__dict__", {})  # a function's own attributes
            if has_parts and (not isinstance(value, IGNORED) or class_attributes(value)):
                yield Named(name, value, frozenset(names), taken_of(name, function.__code__))


def functions(
    objects: Iterable[Any],
    methods: Sequence[str] = ("forward",),
    globals_in: Callable[[CodeType], tuple[str, ...]] | None = None,
) -> Iterator[tuple[FunctionType, tuple[str, ...]]]:
    """The objects' methods of these names, the functions and methods that they name and so on, each with the names in
    it. An object may be a function itself. ``globals_in``: which names of a code are globals; without it all of them.
    """
    kinds: dict[type, None] = {}
    waiting: list[tuple[FunctionType, type | None]] = []
    for each in objects:
        if (itself := _function(each)) is not None:
            waiting.append((itself, type(each.__self__) if isinstance(each, MethodType) else None))
            continue
        kinds[type(each)] = None
        held_by = getattr(each, "__dict__", {}).values()
        waiting += [(function, type(each)) for value in held_by if (function := _function(value)) is not None]
    for kind in kinds:
        waiting += [(function, kind) for function in _methods(kind, methods)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        function, kind_of = waiting.pop()
        if id(function) in seen or is_library(function.__globals__.get("__name__", "")):
            continue
        seen.add(id(function))
        names = _names_in(function.__code__)
        yield function, names
        if kind_of is not None:
            waiting += [(method, kind_of) for method in _methods(kind_of, names)]
        held: Mapping[str, object] = function.__globals__
        read = names if globals_in is None else globals_in(function.__code__)
        for value in [*around(function), *(held[name] for name in read if name in held)]:
            inner = _function(value)
            if inner is not None:
                waiting.append((inner, None))


def _function(value: object) -> FunctionType | None:
    function = value.__func__ if type(value) is MethodType else value
    return function if type(function) is FunctionType else None


def is_library(module: object) -> bool:
    """Whether a Python module of this name isn't followed."""
    return str(module).partition(".")[0] in _LIBRARIES


def _methods(kind: type, names: Iterable[str]) -> Iterator[FunctionType]:
    """Of the class and all that it inherits: one may call the other."""
    for each in kind.__mro__:
        if not is_library(each.__module__):
            held = vars(each)
            yield from (method for name in names if (method := _own_function(held.get(name))) is not None)


def _own_function(member: object) -> FunctionType | None:
    """That of a method, a property, a static or a class method."""
    inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return inner if isinstance(inner, FunctionType) else None


def _names_in(code: CodeType) -> tuple[str, ...]:
    """The names in a function's code and in the functions that it makes."""
    found = _names.get(code)
    if found is None:
        inner = (name for const in code.co_consts if isinstance(const, CodeType) for name in _names_in(const))
        found = _names[code] = tuple(dict.fromkeys([*code.co_names, *inner]))
    return found


def variables_in(code: CodeType) -> tuple[str, ...]:
    """The globals that a function's code and the functions that it makes read or set: no names of attributes."""
    found = _variables.get(code)
    if found is None:
        told = [str(each.argval) for each in dis.get_instructions(code) if each.opname in _OF_GLOBALS]
        inner = (name for const in code.co_consts if isinstance(const, CodeType) for name in variables_in(const))
        found = _variables[code] = tuple(dict.fromkeys([*told, *inner]))
    return found


def seeds(code: CodeType) -> bool:
    """Whether a function's code, or that of one that it makes, seeds a generator that the whole process has: with
    ``torch.manual_seed``, ``numpy.random.seed``, or ``random.seed``.

    ``torch.Generator().manual_seed`` seeds one of its own, as does the same of a local variable.
    """
    for each in codes(code):
        pairs = list(itertools.pairwise(instructions_of(each)))
        imported = {step.argval for last, step in pairs if last.opname in _IMPORTS}
        for last, step in pairs:
            if (last.argval, step.argval) == ("random", "seed"):
                return True
            is_global = step.opname in READS or last.opname in READS or last.argval in {*_SEEDED_BY, *imported}
            if step.argval == "manual_seed" and is_global:
                return True
    return False


def _defaults(function: FunctionType) -> dict[str, object]:
    """Name → what its arguments are where nothing is given, but plain values: it is the same in each call."""
    last = function.__code__.co_varnames[: function.__code__.co_argcount][::-1]
    named = dict(zip(last, (function.__defaults__ or ())[::-1], strict=False)) | (function.__kwdefaults__ or {})
    return {name: value for name, value in named.items() if not isinstance(value, UNCHANGING)}


def around(function: FunctionType) -> Iterator[object]:
    """The variables around it that it names."""
    return (value for _, value in _around(function))


def _around(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # nothing was put into it yet
