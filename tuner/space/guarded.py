"""What a third party's declaration does wrong is told as its own, and not as a bug of autotune's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tuner.errors import AutotuneError, SpaceError
from tuner.model import Value
from tuner.space.declare import Knob, Known, SearchSpace

_FUNCTIONS = ("choices", "needs", "refuses", "fixed_in_ranks", "keeps_up", "told", "unlikely")
_SPACES_FUNCTIONS = ("allowed", "derive")
_TIERS = (1, 2, 3)
_HINT = "tuner/space/declare.py says what each of its fields takes and gives"
_Declared = TypeVar("_Declared", Knob, SearchSpace)


def guarded(space: SearchSpace, place: str) -> SearchSpace:
    """The space, whose functions raise ``SpaceError`` in place of what they raise; ``place`` is its name or file.

    Raises ``SpaceError`` itself for a name or a tier that can't be one, and a function that is none.
    """
    knobs = tuple(_checked(knob, place) for knob in space.knobs)
    larger = None if space.larger is None else _checked(space.larger, place)
    return replace(_with_guards(space, _SPACES_FUNCTIONS, place), knobs=knobs, larger=larger)


def _checked(knob: Knob, place: str) -> Knob:
    if not isinstance(knob.name, str) or not knob.name.isidentifier():
        raise SpaceError(
            f"{place}: a knob is called {knob.name!r}",
            hint="--set and placeholders name it: letters, digits and _, as in batch_size",
        )
    if knob.tier not in _TIERS:
        raise SpaceError(f"{place}: knob {knob.name!r} is of tier {knob.tier!r}", hint="a tier is 1, 2 or 3")
    safe = _with_guards(knob, _FUNCTIONS, f"{place}: knob {knob.name!r}")
    return replace(safe, choices=_valued(safe.choices, f"{place}: knob {knob.name!r}"))


def _with_guards(declared: _Declared, names: Sequence[str], place: str) -> _Declared:
    functions = {name: getattr(declared, name) for name in names if getattr(declared, name) is not None}
    guards: dict[str, Any] = {name: _guard(each, f"{place}: {name}") for name, each in functions.items()}
    return replace(declared, **guards)


def _guard(function: Callable[..., Any], place: str) -> Callable[..., Any]:
    if not callable(function):
        raise SpaceError(f"{place} is {function!r:.60}, which is no function", hint=_HINT)

    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except AutotuneError:
            raise
        except Exception as error:  # the user's own code may raise anything
            raise SpaceError(f"{place} fails: {type(error).__name__}: {error}", hint=_HINT) from error

    return called


def _valued(choices: Callable[[Known], Sequence[Value]], place: str) -> Callable[[Known], Sequence[Value]]:
    """Raises ``SpaceError`` for anything but values: a config is stored, and given to the script."""

    def values(known: Known) -> Sequence[Value]:
        given = choices(known)
        try:
            offered = tuple(given)
        except TypeError:
            raise SpaceError(f"{place}: choices gives {given!r:.60}, which is no sequence", hint=_HINT) from None
        for value in offered:
            if not isinstance(value, (bool, int, float, str)):
                raise SpaceError(
                    f"{place}: choices gives {value!r:.60}, which is no value",
                    hint="a value is a number, a word, or True or False",
                )
        return offered

    return values
