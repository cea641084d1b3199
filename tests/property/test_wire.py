"""The wire survives anything that a child can put on it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.child import wire
from tuner.child.records import RECORDS

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.text(min_size=1).filter(lambda name: name not in ("v", "t", "kind"))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and not math.isfinite(a):
        return str(float(b)) == str(a)
    if isinstance(a, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return set(a) == set(b) and all(_same(a[k], b[k]) for k in a)
    return bool(a == b)


@settings(deadline=None)
@given(st.sampled_from(sorted(RECORDS)), st.dictionaries(NAMES, VALUES, max_size=4))
def test_a_record_comes_back_as_it_was(kind: str, fields: dict[str, Any]) -> None:
    (record,) = wire.decode_fields([wire.encode_fields(kind, 1.5, fields)])
    assert record["kind"] == kind
    assert record["t"] == 1.5
    assert all(_same(value, record[name]) for name, value in fields.items())


@settings(deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=3), st.data())
def test_a_torn_line_is_skipped_and_its_neighbours_are_not(fields: dict[str, Any], data: st.DataObject) -> None:
    whole = wire.encode_fields("note", 0.0, fields)
    torn = whole[: data.draw(st.integers(0, len(whole) - 2))]
    assert [r["kind"] for r in wire.decode_fields([whole, torn])] == ["note"]


@settings(deadline=None)
@given(st.binary())
def test_garbage_is_skipped(garbage: bytes) -> None:
    assert all(record["kind"] in RECORDS for record in wire.decode_fields([garbage]))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown record kind 'gossip'"):
        wire.encode_fields("gossip", 0.0, {})
