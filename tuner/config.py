"""A choice of knobs, as a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.child.records import Value


def same_value(one: Value | None, other: Value | None) -> bool:
    """Whether two values are one choice: True is not 1, and 1 is not 1.0."""
    return type(one) is type(other) and one == other


class Config(Mapping[str, Value]):
    """Knob → value, immutable and hashable. A knob that is absent stays as the script wrote it.

    It keeps the order in which knobs were given, for display; equality disregards order, and goes by ``same_value``,
    with any other mapping, too. A config without knobs is false.
    """

    __slots__ = ("_hash", "_known_by", "_values")

    def __init__(self, values: Mapping[str, Value] | None = None, /, **knobs: Value) -> None:
        self._values: dict[str, Value] = {**(values or {}), **knobs}
        self._known_by = _identity(self._values)
        self._hash = hash(self._known_by)

    def __getitem__(self, knob: str) -> Value:
        return self._values[knob]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Config):
            return self._known_by == other._known_by
        if not isinstance(other, Mapping):
            return NotImplemented
        return len(self) == len(other) and all(
            knob in other and same_value(value, other[knob]) for knob, value in self._values.items()
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Config({self._values!r})"

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, Value]]]:
        return Config, (self._values,)


def _identity(values: Mapping[str, Value]) -> frozenset[tuple[str, type, Value]]:
    return frozenset((knob, type(value), value) for knob, value in values.items())


BASELINE = Config()
"""The script as written."""
