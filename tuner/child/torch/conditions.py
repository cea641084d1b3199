"""Under which conditions a module was found to compute a batch in parts, and when it has to be asked again.

What was true of a call needn't be of the next one: layers are frozen and unfrozen, a stage of the training begins,
attributes switch parts of a model on. Modes, text and switches are few: each new combination is asked about. Numbers
may change with each step: of those that do, ever fewer are.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from .state import HOOKS, OWN, hooked
from .types import Module

_NUMBERS = (int, float, complex)
_WORDS = (bool, str, bytes, type(None), enum.Enum)
SPELL = 16
"""A number that stayed for so many calls begins something new when it changes: it is asked about each time."""
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
    """Reads the conditions of one module with each call: modes, hooks and plain attributes of it and of those in it."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._newest: Conditions | None = None

    def read(self, module: Module) -> Conditions:
        """As they are now. Where nothing changed that takes half a microsecond for each module."""
        if self._newest is not None and (index := _changed(self._places, 0)) is None:
            return self._newest
        if self._newest is None or not self._mended(index or 0):
            modules: list[Any] = list(module.modules())
            self._places = [_place(each) for each in modules]
        words, numbers = (tuple(place[at] for place in self._places) for at in (-2, -1))
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
