"""Under which conditions a module was found to compute a batch in parts, and when it has to be asked again.

What was true of a call needn't be of the next one: layers are frozen and unfrozen, a stage of the training begins,
attributes switch parts of a model on, and so do globals and options that its code names. Modes, text and switches are
few: each new combination is asked about. Numbers may change with each step: of those that do, ever fewer are.
"""

from __future__ import annotations

import enum
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple

from .. import call_sites
from ..data_state import UNCHANGING
from .reached import IGNORED, around, functions, is_library
from .state import HOOKS, OWN, hooked
from .types import Module

_NUMBERS = (int, float, complex)
_WORDS = (bool, str, bytes, type(None), enum.Enum)
SPELL = 16
"""A number that stayed for so many calls begins something new when it changes: it is asked about each time."""
_PLAIN_TYPES = frozenset(UNCHANGING)
_MOST_ENTRIES = 256
"""Larger mappings are data, and not settings."""
DENSE = 16
"""Of numbers that change all the time the first so many, then one after each further such share of them."""


class Conditions(NamedTuple):
    """What a call may hang on besides its tensors. ``kind``: modes, modules, words; ``numbers``.

    ``hooked``: whether the script has hooks on a module.
    """

    kind: int
    numbers: int
    hooked: bool


class _Place(NamedTuple):
    """A module, and what it was read as. It isn't kept alive, nor what its attributes hold."""

    module: Callable[[], Any]
    attributes: int
    values_of: Callable[[dict[str, Any]], object]
    values: object
    inner: tuple[int, ...]
    hooks: int
    words: int
    numbers: int


class ConditionsReader:
    """Reads the conditions of one module with each call: modes, hooks and plain attributes of it and of those in it,
    and the settings around them.
    """

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._newest: Conditions | None = None
        self._settings = Settings(())
        self._settings_now: Contents = []

    def read(self, module: Module) -> Conditions:
        """As they are now. Where nothing changed that takes half a microsecond for each module."""
        index = _changed(self._places, 0) if self._newest is not None else 0
        if self._newest is None or (index is not None and not self._mended(index)):
            modules: list[Any] = list(module.modules())
            self._places = [_place(each) for each in modules]
            self._settings = Settings(modules)
        settings = self._settings.read()
        if self._newest is not None and index is None and settings == self._settings_now:
            return self._newest
        self._settings_now = settings
        words, numbers = (tuple(place[at] for place in self._places) for at in (-2, -1))
        plain = [value for content in settings for value in content]
        words += tuple(repr(value) for value in plain if not _is_number(value))
        numbers += tuple(value for value in plain if _is_number(value))
        listens = any(place.hooks for place in self._places)
        self._newest = Conditions(hash(words), hash(numbers), listens and hooked(module))
        return self._newest

    def _mended(self, first: int) -> bool:
        """Reads anew what changed from this place on; whether these are the same modules still."""
        index: int | None = first
        while index is not None:
            before, module = self._places[index], self._places[index].module()
            if module is None:
                return False
            self._places[index] = place = _place(module)
            if place.inner != before.inner or place.attributes < 0:
                return False
            index = _changed(self._places, index + 1)
        return True


Contents = list[list[Any]]
"""The plain values of settings, one list for each object that holds some."""


class Settings:
    """What the code of modules names outside of them (globals, variables around it) and the objects in attributes of
    modules that aren't PyTorch's own: their plain values, and those of their attributes and entries. Of classes and
    modules the script's own.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        own = [module for module in modules if not is_library(type(module).__module__)]
        named = [
            (weakref.ref(function), tuple(name for name in names if _is_setting(function.__globals__.get(name))))
            for function, names in functions(own)
        ]
        self._functions = [(refer, names) for refer, names in named if names or _closure_of(refer)]
        held = [(weakref.ref(module), _objects_in(vars(module))) for module in own]
        self._modules = [(refer, names) for refer, names in held if names]

    def read(self) -> Contents:
        """As they are now."""
        values: list[Any] = []
        for refer, names in self._functions:
            function = refer()
            if function is not None:
                held = function.__globals__
                values += [held.get(name) for name in names]
                if function.__closure__:
                    values += around(function)
        for refer_module, names in self._modules:
            attributes = getattr(refer_module(), "__dict__", {})
            values += [attributes.get(name) for name in names]
        objects = {id(value): value for value in values if type(value) not in _PLAIN_TYPES}
        return [[v for v in values if type(v) in _PLAIN_TYPES], *map(_content, objects.values())]


def _closure_of(refer: Callable[[], FunctionType | None]) -> object:
    function = refer()
    return function is not None and function.__closure__


def _objects_in(attributes: Mapping[str, object]) -> tuple[str, ...]:
    """Those that may hold settings. What a module of PyTorch's keeps of hooks are ordered mappings."""
    return tuple(
        name for name, value in attributes.items()
        if name not in OWN and type(value) is not OrderedDict and type(value) not in _PLAIN_TYPES and _is_setting(value)
    )  # fmt: skip


def _is_setting(value: Any) -> bool:
    if type(value) in _PLAIN_TYPES:
        return True
    if isinstance(value, type):
        return not is_library(value.__module__)
    if isinstance(value, ModuleType):
        file = vars(value).get("__file__")  # a lazy module mustn't be asked
        return isinstance(file, str) and not call_sites.is_library(file)
    return not isinstance(value, IGNORED) and not callable(value) and _entries(value) is not None


def _entries(value: Any) -> Collection[Any] | None:
    """What an object, a class, a module or a container holds."""
    if isinstance(value, (list, deque)):
        return value
    held = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    return held.values() if isinstance(held, (dict, MappingProxyType)) else None


def _content(value: object) -> list[Any]:
    entries = _entries(value)
    if entries is None or len(entries) > _MOST_ENTRIES:
        return []
    return [entry for entry in list(entries) if type(entry) in _PLAIN_TYPES]


def _changed(places: list[_Place], first: int) -> int | None:
    """The first place from there on that isn't as it was read. Written out for its speed: it runs with each call."""
    one, two, three, four = HOOKS
    index = first - 1
    try:
        for refer, attributes, values_of, values, inner, hooks, _, _ in places[first:] if first else places:
            index += 1
            held = refer().__dict__
            if len(held) != attributes or values_of(held) != values:
                return index
            modules = held["_modules"]
            if (modules or inner) and tuple(map(id, modules.values())) != inner:
                return index
            if (held[one] or held[two] or held[three] or held[four] or hooks) and _hooks_in(held) != hooks:
                return index
    except Exception:  # it is gone, or an attribute holds what compares to nothing, such as a tensor
        return index
    return None


def _hooks_in(held: dict[str, Any]) -> int:
    return sum(len(held[name]) for name in HOOKS)


def _place(module: Any) -> _Place:
    held = vars(module)
    own = [(name, value) for name, value in held.items() if name not in OWN]
    plain = [name for name, value in own if _is_number(value) or _is_word(value)]
    words = hash((id(module), type(module), module.training, *((n, _told(v)) for n, v in own if not _is_number(v))))
    numbers = hash(tuple((name, value) for name, value in own if _is_number(value)))
    if "training" not in held or "_modules" not in held:  # a module of TorchScript's: it is read anew with each call
        return _Place(weakref.ref(module), -1, len, None, (), 0, words, numbers)
    values_of: Any = itemgetter("training", *plain)
    inner = tuple(map(id, held["_modules"].values()))
    return _Place(weakref.ref(module), len(held), values_of, values_of(held), inner, _hooks_in(held), words, numbers)


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, (bool, enum.Enum))


def _is_word(value: object) -> bool:
    if type(value) is tuple:
        return all(isinstance(entry, (*_WORDS, *_NUMBERS)) for entry in value)
    return isinstance(value, _WORDS)


def _told(value: object) -> Hashable:
    return repr(value) if _is_number(value) or _is_word(value) else type(value).__name__


class Todo(enum.Enum):
    """How a call is made: in parts, in parts if the module stands the question, or whole and watched."""

    PARTS = "parts"
    ASK = "ask"
    WATCH = "watch"


@dataclass(frozen=True)
class Case:
    """A call's conditions and arguments.

    ``outline``: what the arguments are; ``numbers``: what of both may change all the time.
    """

    outline: str
    kind: int
    numbers: int


class Trust:
    """What a module was asked about. New conditions are watched with the whole batch first: asking has side effects
    where a module keeps something.
    """

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], set[int]] = {}
        self._watched: set[tuple[str, int]] = set()
        self._changes = self._stayed = self._newest = 0

    def __bool__(self) -> bool:
        """Whether it was trusted in any case."""
        return bool(self._asked)

    def todo(self, case: Case) -> Todo:
        """How a call of this case is to be made; called once with each."""
        kind = (case.outline, case.kind)
        stayed = self._stayed
        self._stayed = stayed + 1 if case.numbers == self._newest else 0
        self._newest = case.numbers
        numbers = self._asked.get(kind)
        if numbers is not None and case.numbers in numbers:
            return Todo.PARTS
        if kind in self._watched or not self._asked:
            return Todo.ASK
        if numbers is not None:
            self._changes += 1
            if stayed < SPELL and self._changes > DENSE and self._changes % (self._changes // DENSE):
                return Todo.PARTS
        self._watched.add(kind)
        return Todo.WATCH

    def add(self, case: Case) -> None:
        """The module stood the question in this case."""
        kind = (case.outline, case.kind)
        self._watched.discard(kind)
        self._asked.setdefault(kind, set()).add(case.numbers)
