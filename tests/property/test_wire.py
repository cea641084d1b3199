"""The wire survives anything that a child can put on it, and gives back what was sent."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.child import shape, wire
from tuner.child.records import RECORDS, ChildRequest, Facts, Knowledge, Note, Record

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PLAIN: Mapping[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(), int: st.integers(-(2**63), 2**63), float: st.floats().map(lambda value: value + 0.0),
    str: st.text(), type(None): st.none(),
}  # fmt: skip


def shaped(declared: Any) -> st.SearchStrategy[Any]:
    """Any value of a declared type; 0.0 stands for -0.0, which is equal to it and may be left out.

    In a union with texts a number is finite: others travel as text, and would stay one.
    """
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        finite = st.floats(allow_nan=False, allow_infinity=False)
        return st.one_of([finite if a is float and str in arguments else shaped(a) for a in arguments])
    if dataclasses.is_dataclass(declared):
        hints = get_type_hints(declared)
        fields = dataclasses.fields(declared)
        given_ones = {f.name: shaped(hints[f.name]) for f in fields}
        return st.fixed_dictionaries(given_ones).map(lambda values: declared(**values))  # type: ignore[operator]  # a type
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(shaped(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(shaped, arguments))
    if origin in (dict, Mapping):
        return st.dictionaries(st.text(), shaped(arguments[1]), max_size=3)
    if issubclass(declared, StrEnum):
        return st.sampled_from(declared)
    return PLAIN[declared]


REPORT = '"kind":"knob","knob":"a","requested":2,"sites_seen":1,"sites_changed":1,"evidence":"verified"'
SENT = st.sampled_from(list(RECORDS.values())).flatmap(shaped)


@given(SENT, st.floats(-1e9, 1e9))
def test_a_record_comes_back_as_it_was(record: Record, t: float) -> None:
    (entry,) = wire.decode([wire.encode(record, t)])
    assert repr(entry.record) == repr(record), "repr tells 1 from 1.0 and True, and NaN is equal to itself there"
    assert entry.t == round(t, 6)


@given(shaped(ChildRequest))
def test_a_request_comes_back_as_it_was(request: ChildRequest) -> None:
    assert repr(wire.decode_request(wire.encode_request(request))) == repr(request)


@settings(max_examples=120)
@given(SENT, st.data())
def test_a_field_of_another_type_gives_a_note_and_no_exception(record: Record, data: st.DataObject) -> None:
    line = json.loads(wire.encode(record, 1.0))
    name = data.draw(st.sampled_from([field.name for field in dataclasses.fields(record)]))
    line[name] = data.draw(JSON)
    (entry,) = wire.decode([json.dumps(line).encode()])
    assert isinstance(entry.record, (type(record), Note))
    if isinstance(entry.record, type(record)):
        shape.read(type(record), json.loads(json.dumps(shape.plain(entry.record))))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('"kind":"compile","graphs":1.5,"seconds":1', "graphs is 1.5, not a whole number"),
        ('"kind":"compile","graphs":1e999,"seconds":1', "graphs is inf, not a whole number"),
        ('"kind":"compile","graphs":NaN,"seconds":1', "graphs is nan, not a whole number"),
        ('"kind":"loss","samples":true,"value":1', "samples is True, not a number"),
        ('"kind":"loss","samples":' + "9" * 400 + ',"value":1', "not a number of this range"),
        ('"kind":"loss","samples":1', "Loss lacks value"),
        (REPORT.replace("2", "[2]"), "requested is [2]"),
        (REPORT.replace("verified", "so so"), "evidence is 'so so', not one of verified,"),
        ('"kind":"facts","as_written":{"a":null}', "as_written.a is None"),
        ('"kind":"facts","loaders":[{"key":"a"}]', "loaders[0] lacks fetches"),
    ],
)
def test_what_is_not_as_declared_is_noted_with_its_place(line: str, says: str) -> None:
    (entry,) = wire.decode([f'{{"v":1,"t":1,{line}}}'.encode()])
    assert isinstance(entry.record, Note)
    assert entry.record.text.startswith(wire.UNREADABLE)
    assert says in entry.record.text


@pytest.mark.parametrize(
    "line",
    [b'{"v":2,"t":1,"kind":"note","text":"a"}', b'{"v":1,"t":1,"kind":"gossip"}', b'{"v":1,"kind":"note","text":"a"}',
     b'{"v":1,"t":NaN,"kind":"note","text":"a"}', b'{"v":1,"t":true,"kind":"note","text":"a"}', b"[1]", b"1", b"",
     b"[" * 100_000, b'{"v":1,"t":1,"kind":["note"]}', b'{"v":1,"t":' + b"9" * 400 + b',"kind":"note","text":"a"}'],
)  # fmt: skip
def test_what_is_not_ours_is_skipped(line: bytes) -> None:
    assert list(wire.decode([line])) == []


def test_a_name_that_only_a_later_version_knows_is_skipped() -> None:
    (entry,) = wire.decode([b'{"v":1,"t":1,"kind":"note","text":"a","colour":"red"}'])
    assert entry.record == Note("a")


@given(SENT, st.data())
def test_a_torn_line_is_skipped_and_its_neighbours_are_not(record: Record, data: st.DataObject) -> None:
    whole = wire.encode(record, 0.0)
    torn = whole[: data.draw(st.integers(0, len(whole) - 2))]
    assert [type(entry.record) for entry in wire.decode([whole, torn])] == [type(record)]


@given(st.binary())
def test_garbage_is_skipped(garbage: bytes) -> None:
    assert all(type(entry.record) in RECORDS.values() for entry in wire.decode([garbage]))


def test_every_default_says_that_nothing_is_known() -> None:
    """What is absent on the wire may be left out there: only a default can be."""
    assert json.loads(wire.encode(Facts(), 0.0)).keys() == {"v", "t", "kind"}
    assert shape.read(Knowledge, {}) == Knowledge()
