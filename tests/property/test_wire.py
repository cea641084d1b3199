"""The wire survives anything that a child can put on it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, get_args

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.child import wire
from tuner.child.records import RECORDS, ChildRequest, Loss, Note, Record

# Odd floats travel as text, which only fields that are floats read back: they have a test of their own.
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0))
st.register_type_strategy(Mapping, lambda kind: st.dictionaries(*map(st.from_type, get_args(kind)), max_size=3))
SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _all_fields(kind: Any) -> st.SearchStrategy[Any]:
    """Any record (or request) of the type, with no field left to its default."""
    return st.builds(kind, **{field.name: ... for field in dataclasses.fields(kind)})


@SLOW
@given(st.sampled_from(sorted(RECORDS)).flatmap(lambda kind: _all_fields(RECORDS[kind])))
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    (entry,) = wire.decode([wire.encode(record, 1.5)])
    assert entry.t == 1.5
    assert type(entry.record) is type(record)
    assert repr(entry.record) == repr(record), "with 1 and 1.0 and True told apart"


@given(st.floats(), st.floats())
def test_a_float_that_json_has_no_word_for_comes_back_too(samples: float, value: float) -> None:
    (entry,) = wire.decode([wire.encode(Loss(samples, value), 0.0)])
    assert repr(entry.record) == repr(Loss(samples, value)) or not math.isfinite(samples + value)
    assert isinstance(entry.record, Loss)
    assert math.isnan(entry.record.value) if math.isnan(value) else entry.record.value == value


@SLOW
@given(_all_fields(ChildRequest))
def test_a_request_comes_back_as_it_was(request: ChildRequest) -> None:
    assert repr(wire.decode_request(wire.encode_request(request))) == repr(request)


@settings(deadline=None)
@given(st.text(), st.data())
def test_a_torn_line_is_skipped_and_its_neighbours_are_not(text: str, data: st.DataObject) -> None:
    whole = wire.encode(Note(text), 0.0)
    torn = whole[: data.draw(st.integers(0, len(whole) - 2))]
    assert [entry.record for entry in wire.decode([whole, torn])] == [Note(text)]


@settings(deadline=None)
@given(st.binary())
def test_garbage_is_skipped(garbage: bytes) -> None:
    assert all(entry.record.kind in RECORDS for entry in wire.decode([garbage]))
