"""Who holds functions and classes that hooks replace: found once by a fork server, for all that it forks.

What was imported before a hook acts may hold what it replaces: by ``from os import stat``, in a table of openers, as
the default of a parameter. To look at every name of every module, and at all objects that refer to an original, takes
0.3 s of a core with PyTorch, and 0.6 s with Keras. What a server has imported holds the same in each of its forks.
"""

from __future__ import annotations

import builtins
import gc
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, ModuleType
from typing import Any

Referrers = Callable[..., list[Any]]
"""As ``gc.get_referrers``."""
_DEEPEST = 3
"""A function may be in a dictionary, which is an attribute of an object, which keeps these in another one, perhaps."""
_BUILT_IN = vars(builtins)


@dataclass(frozen=True)
class Scope:
    """Where to look for originals: modules by their names, and what tells which objects refer to others."""

    modules: Sequence[tuple[str, ModuleType]]
    referrers: Referrers = gc.get_referrers


def everywhere() -> Scope:
    """All modules, and all objects."""
    return Scope(_modules(sys.modules))


class Holders:
    """Who holds one of ``originals`` by now, for processes that are forked off from here on.

    Where the collector of garbage is on, it rests until ``end`` is called in the fork: what a fork has made until then
    is what is in the youngest generation.
    """

    def __init__(self, originals: Collection[object]) -> None:
        self._originals = {id(each): each for each in originals}
        self._imported = dict(sys.modules)
        ids, functions = self._originals.keys(), {each for each in originals if type(each) is BuiltinFunctionType}
        holding = [(name, each) for name, each in _modules(self._imported) if _holds(name, each, ids, functions)]
        self._modules = [name for name, _ in holding]
        self._objects = [
            each for holders in holders_of(originals, gc.get_referrers) for each in holders if type(each) is not list
        ]
        self._collects = gc.isenabled()
        gc.disable()

    def scope(self, originals: Collection[object]) -> Scope:
        """In a fork, before ``end``: where these are, which aren't replaced yet or are by hooks alone."""
        if not all(id(each) in self._originals for each in originals):
            return everywhere()
        then = self._imported
        new = {name: module for name, module in list(sys.modules.items()) if then.get(name) is not module}
        known = {name: sys.modules[name] for name in self._modules if name in sys.modules}
        return Scope(_modules({**known, **new}), self._referrers)

    def _referrers(self, *held: object) -> list[Any]:
        ids = {*map(id, held)}
        among = {id(each): each for each in (*self._objects, *gc.get_objects(generation=0))}
        return [each for each in among.values() if not ids.isdisjoint(map(id, gc.get_referents(each)))]

    def end(self) -> None:
        """In a fork: nothing is looked for any more."""
        if self._collects:
            gc.enable()


def holders_of(originals: Collection[object], referrers: Referrers) -> Iterator[list[Any]]:
    """The objects that refer to these, then those that refer to the dictionaries and tuples among them, and so on.

    Modules' own dictionaries aren't among them.
    """
    passed = {id(vars(module)) for module in list(sys.modules.values()) if _is_module(module)}
    held: list[Any] = [*originals]
    for _ in range(_DEEPEST):
        holders = [each for each in referrers(*held) if each is not held and id(each) not in passed]
        passed.update(map(id, holders))
        yield holders
        held = [holder for holder in holders if type(holder) in (dict, tuple)]
        if not held:
            return


def names_in(value: Any, module: str) -> Mapping[Any, Any]:
    """The entries of a dictionary, or the attributes of a class of that module; of all else there are none.

    Nor of the dictionary of built-in functions, which every module has.
    """
    if type(value) is dict:
        return value if value is not _BUILT_IN else {}
    return vars(value) if issubclass(type(value), type) and value.__module__ == module else {}


def function_of(value: Any) -> Any:
    """The function of a static method; all else is what it is."""
    return value.__func__ if type(value) is staticmethod else value


def _holds(name: str, module: ModuleType, ids: Collection[int], functions: Collection[object]) -> bool:
    """``functions``: those of C among the originals, which are asked for by ``==``, too."""
    for value in list(vars(module).values()):
        if id(value) in ids or (type(value) is BuiltinFunctionType and value in functions):
            return True
        if any(id(function_of(each)) in ids for each in list(names_in(value, name).values())):
            return True
    return False


def _modules(imported: Mapping[str, Any]) -> list[tuple[str, ModuleType]]:
    """Those that aren't ours. A lazy one is asked for nothing: that may import it."""
    ours = __name__.partition(".")[0]
    found = ((name, each) for name, each in list(imported.items()) if _is_module(each))
    return [(name, each) for name, each in found if name.partition(".")[0] != ours]


def _is_module(value: object) -> bool:
    return issubclass(type(value), ModuleType)
