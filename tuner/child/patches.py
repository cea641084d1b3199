"""A ledger of patched attributes: idempotent, reversible, and wearing the original's name and signature."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from .holders import Holders, Referrers, everywhere, function_of, holders_of, names_in

_ORIGINAL = "__autotune_original__"
Stage = tuple[int, Collection[str]]
"""A number of replacements, and what had taken its names before them."""
_ledger: list[tuple[Any, str, Any]] = []
_NONE = frozenset({"__doc__", "__annotations__"})
"""What a function may have as None; a method in C++ may have no name either, which one in Python must have."""
_NO_HOLDERS = frozenset({"builtins", __name__.partition(".")[0]})
_PRIVATE = "._src."
"""A package within JAX's, in which all is defined that it gives."""


@dataclass
class _Kept:
    """Of an original its ``replacement``, and what keeps the original: what had ``taken`` its names before it was
    replaced, and modules whose names begin with one of ``beside``.
    """

    replacement: Any
    taken: Collection[str]
    beside: tuple[str, ...]

    def has_taken(self, module: str, name: str) -> bool:
        return module in self.taken or f"{module}:{name}" in self.taken or module.startswith(self.beside)


def patch(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces ``owner.name`` by ``make(original)``; a second call on the same attribute does nothing.

    Raises ``AttributeError`` when the library has no such attribute: the version doesn't fit.
    """
    original = owner.__dict__[name] if isinstance(owner, type) and name in owner.__dict__ else getattr(owner, name)
    function = original.__func__ if isinstance(original, staticmethod) else original
    if hasattr(function, _ORIGINAL):
        return
    names = functools.WRAPPER_ASSIGNMENTS
    known = [each for each in names if each in _NONE or getattr(function, each, None) is not None]
    replacement = functools.wraps(function, known)(make(function))
    setattr(replacement, _ORIGINAL, original)
    _ledger.append((owner, name, original))
    setattr(owner, name, staticmethod(replacement) if isinstance(original, staticmethod) else replacement)
    _be_found(owner, name, replacement)


def put(owner: Any, name: str, replacement: type) -> None:
    """Replaces a class, which keeps the name that it has. Otherwise as ``patch``."""
    original = getattr(owner, name)
    if not hasattr(original, _ORIGINAL):
        setattr(replacement, _ORIGINAL, original)
        _ledger.append((owner, name, original))
        setattr(owner, name, replacement)
        _be_found(owner, name, replacement)


def _be_found(owner: Any, name: str, replacement: Any) -> None:
    """Has it pickled by the name under which it replaces the original, where the original's leads elsewhere.

    A script may give it to a pool of processes: ``pool.map(os.stat, paths)``, whose ``os.stat`` is ``posix.stat``.
    """
    if not isinstance(owner, ModuleType):
        return
    found: Any = sys.modules.get(replacement.__module__ or "")
    for part in replacement.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # a lazy module mustn't be asked
    if found is not replacement:
        replacement.__module__, replacement.__qualname__ = owner.__name__, name


def replace_name(module: ModuleType, name: str, replacement: Callable[..., Any]) -> None:
    """Has a module that took a function under that name hold what replaces it, which stays what it is called."""
    _ledger.append((module, name, vars(module)[name]))
    vars(module)[name] = replacement


def replace_static(owner: type, name: str, replacement: Callable[..., Any]) -> None:
    """The same for a class that took it as a static method."""
    _ledger.append((owner, name, vars(owner)[name]))
    setattr(owner, name, staticmethod(replacement))


def count() -> int:
    """How many attributes are replaced."""
    return len(_ledger)


def of_modules() -> list[tuple[str, str]]:
    """Which names of modules are replaced, each by the module's name and its own."""
    return [(owner.__name__, name) for owner, name, _ in _ledger if isinstance(owner, ModuleType)]


def give_to_others(stages: Sequence[Stage], holders: Holders | None = None) -> None:
    """What took a function or a class before it was replaced, as ``from torch import save`` does, gets the replacement.

    A stage is the number of replacements before it, and what had taken its names before them, and keeps them: modules,
    and of those that had only begun each name, as ``module:name``. Names of modules are looked at, attributes of their
    classes and of objects of these, entries of their dictionaries, and defaults of functions: not what lies deeper.
    ``holders``: where a fork server has found these; else they are looked for everywhere.
    """
    kept: dict[int, _Kept] = {}
    originals: dict[int, Any] = {}
    for (first, taken), end in zip(stages, [*(first for first, _ in stages[1:]), len(_ledger)], strict=True):
        for owner, name, original in _ledger[first:end]:
            if isinstance(owner, ModuleType):
                known = kept.setdefault(id(original), _Kept(getattr(owner, name), taken, _beside(original)))
                if owner.__name__.startswith(known.beside):
                    known.beside = ()  # it is replaced where it is defined, too
                originals[id(original)] = original
    scope = holders.scope(originals.values()) if holders is not None else everywhere()
    for module_name, module in scope.modules:
        for name, value in list(vars(module).items()):  # asking a lazy module itself may import it
            if inner := names_in(value, module_name):
                put = value.__setitem__ if type(value) is dict else partial(setattr, value)
                _give(inner, put, module_name, name, kept)
            elif id(value) in kept and not kept[id(value)].has_taken(module_name, name):
                _ledger.append((module, name, value))
                vars(module)[name] = kept[id(value)].replacement
    _give_to_objects(kept, [*originals.values()], scope.referrers)


def _beside(original: Any) -> tuple[str, ...]:
    """What the names begin with of modules that take it from where it is defined: of JAX's own those that aren't given
    to users. What is replaced is the name that users take it by.
    """
    package, private, _ = f"{getattr(original, '__module__', '')}.".partition(_PRIVATE)
    return (package + private,) if private else ()


def _give_to_objects(
    kept: Mapping[int, _Kept], originals: Sequence[object], referrers: Referrers
) -> None:
    """The same for the attributes of objects, and the dictionaries among these, by the class of the object.

    NumPy has ``open`` in one, through which ``savetxt`` writes: a user's file, if it were the original. And for the
    defaults of functions, by the function.
    """
    for holders in holders_of(originals, referrers):
        for holder in holders:
            if type(holder) is FunctionType:
                _give_to_function(holder, kept)
                continue
            module = getattr(type(holder), "__module__", None)
            if isinstance(module, str) and module.partition(".")[0] not in _NO_HOLDERS and hasattr(holder, "__dict__"):
                own, kind = object.__getattribute__(holder, "__dict__"), type(holder).__name__
                _give(own, own.__setitem__, module, kind, kept)
                for value in list(own.values()):
                    if type(value) is dict:
                        _give(value, value.__setitem__, module, kind, kept)


def _give_to_function(function: FunctionType, kept: Mapping[int, _Kept]) -> None:
    module, outermost = function.__globals__.get("__name__"), function.__qualname__.partition(".")[0]
    if not isinstance(module, str) or module.partition(".")[0] in _NO_HOLDERS:
        return
    if function.__kwdefaults__:
        _give(function.__kwdefaults__, function.__kwdefaults__.__setitem__, module, outermost, kept)
    given = dict(enumerate(function.__defaults__ or ()))
    _give(given, given.__setitem__, module, outermost, kept)
    if given:
        function.__defaults__ = tuple(given.values())


def _give(
    names: Mapping[Any, Any],
    put: Callable[[Any, Any], object],
    module: str,
    place: str,
    kept: Mapping[int, _Kept],
) -> None:
    """The same for the attributes of a class, or the entries of a dictionary, in this place of this module."""
    for name, value in list(names.items()):
        found = kept.get(id(function_of(value)))
        if found is not None and not found.has_taken(module, place):
            with suppress(TypeError, AttributeError):  # a class of C's
                put(name, staticmethod(found.replacement) if type(value) is staticmethod else found.replacement)


def unpatch_all() -> None:
    """Puts every original back, newest first."""
    while _ledger:
        owner, name, original = _ledger.pop()
        setattr(owner, name, original)


@contextmanager
def instead(owner: object, name: str, method: Callable[..., object]) -> Iterator[None]:
    """While it lasts one object's method is another: what an object itself has goes before what its class has.

    Past ``__setattr__``, by which libraries keep track of an object's parts.
    """
    own = vars(owner)
    had, before = name in own, own.get(name)
    own[name] = method
    try:
        yield
    finally:
        if had:
            own[name] = before
        else:
            del own[name]
