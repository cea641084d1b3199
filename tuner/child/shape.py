"""JSON to dataclasses and back: what comes from the other side of a boundary has the declared types, or is refused.

JSON has no NaN and no infinity: they travel as text, which ``float`` reads back. A field whose value is its default may
be absent; a name that the type doesn't have is skipped, since a newer version may have written it.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Shape = TypeVar("Shape")
Reader = Callable[[Any, str], Any]
"""A JSON value and its place, to the value as declared. Raises ``ValueError``."""


def plain(value: Any) -> Any:
    """The value in JSON's own types: dataclasses become objects, tuples and sets lists, odd floats text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if not _is_default(value, f)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    return value


def _is_default(value: Any, field: dataclasses.Field[Any]) -> bool:
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    own = getattr(value, field.name)
    return default is not dataclasses.MISSING and type(own) is type(default) and own == default


def read(shape: type[Shape], value: Any, place: str = "") -> Shape:
    """The JSON value as ``shape``. Raises ``ValueError`` naming the place and what stands there instead."""
    kind: Any = shape  # typing's own forms are hashable, which their types don't say
    result: Shape = _reader(kind)(value, place or shape.__name__)
    return result


@cache
def _reader(shape: Any) -> Reader:
    """What reads a value of this shape; made once for each."""
    origin, arguments = get_origin(shape), get_args(shape)
    if shape is Any:
        return lambda value, place: value
    if origin in (Union, types.UnionType):
        return _either([_reader(argument) for argument in arguments])
    if dataclasses.is_dataclass(shape):
        return _dataclass_reader(shape)
    if origin is tuple and arguments[-1] is Ellipsis:
        return _tuple_reader(_reader(arguments[0]))
    if origin is tuple:
        return _row_reader([_reader(argument) for argument in arguments])
    if origin in (dict, Mapping):
        return _mapping_reader(_reader(arguments[1]))
    if isinstance(shape, type) and issubclass(shape, StrEnum):
        return _word_reader(shape)
    return _PLAIN[shape]


def _refuse(place: str, value: Any, wanted: str) -> ValueError:
    return ValueError(f"{place} is {value!r:.60}, not {wanted}")


def _number(value: Any, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _refuse(place, value, "a number")
    if isinstance(value, str) and value not in ("nan", "inf", "-inf"):
        raise _refuse(place, value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _refuse(place, value, "a number of this range") from None


def _whole(value: Any, place: str) -> int:
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        raise _refuse(place, value, "a whole number")
    return int(value)


def _exactly(kind: type, wanted: str) -> Reader:
    def check(value: Any, place: str) -> Any:
        if type(value) is not kind:
            raise _refuse(place, value, wanted)
        return value

    return check


def _nothing(value: Any, place: str) -> None:
    if value is not None:
        raise _refuse(place, value, "null")


_PLAIN: Mapping[Any, Reader] = {
    float: _number, int: _whole, bool: _exactly(bool, "true or false"), str: _exactly(str, "a text"),
    type(None): _nothing,
}  # fmt: skip


def _either(readers: list[Reader]) -> Reader:
    """A value that fits one of several shapes stays what it is: 1 is not turned into true, nor 1.0 into 1."""

    def check(value: Any, place: str) -> Any:
        fitting = [reader for reader in readers if reader is _PLAIN.get(type(value))]
        refusal: ValueError | None = None
        for reader in [*fitting, *readers]:
            try:
                return reader(value, place)
            except ValueError as error:
                refusal = refusal or error
        assert refusal is not None, "a union has members"
        raise refusal

    return check


def _tuple_reader(element: Reader) -> Reader:
    def check(value: Any, place: str) -> Any:
        if not isinstance(value, list):
            raise _refuse(place, value, "a list")
        return tuple(element(entry, f"{place}[{index}]") for index, entry in enumerate(value))

    return check


def _row_reader(elements: list[Reader]) -> Reader:
    def check(value: Any, place: str) -> Any:
        if not isinstance(value, list) or len(value) != len(elements):
            raise _refuse(place, value, f"a list of {len(elements)}")
        pairs = zip(elements, value, strict=True)
        return tuple(element(entry, f"{place}[{index}]") for index, (element, entry) in enumerate(pairs))

    return check


def _mapping_reader(element: Reader) -> Reader:
    def check(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _refuse(place, value, "an object")
        return {name: element(entry, f"{place}.{name}") for name, entry in value.items()}

    return check


def _word_reader(shape: type[StrEnum]) -> Reader:
    words = ", ".join(shape)

    def check(value: Any, place: str) -> Any:
        try:
            return shape(value)
        except ValueError:
            raise _refuse(place, value, f"one of {words}") from None

    return check


def _dataclass_reader(shape: Any) -> Reader:
    hints = get_type_hints(shape)
    readers = {f.name: _reader(hints[f.name]) for f in dataclasses.fields(shape)}
    required = {
        f.name for f in dataclasses.fields(shape)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }  # fmt: skip

    def check(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _refuse(place, value, "an object")
        lacking = required - value.keys()
        if lacking:
            raise ValueError(f"{place} lacks {', '.join(sorted(lacking))}")
        return shape(**{name: readers[name](value[name], f"{place}.{name}") for name in readers if name in value})

    return check
