"""What must hold of every search space: one config has one name, and indices and configs are each other's inverse."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.torch import SPACE as TORCH
from tuner.errors import SpaceError, UnknownKnobError
from tuner.knowledge import Knowledge
from tuner.model import Config, Device, LeftOut, Value, same_value
from tuner.space.declare import Knob, Known, SearchSpace
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace

CPU = Device("cpu", 0, "a CPU", "", 2**34)
# Values that Python takes for equal, among others.
VALUES: st.SearchStrategy[Value] = st.sampled_from([True, False, 0, 1, 1.0, 0.0, 2, "1", "true", "fp32"])


@st.composite
def spaces(draw: st.DrawFn) -> ResolvedSpace:
    """Spaces of up to four knobs, each of which may need that an earlier or later one isn't at some value."""
    names = ["a", "b", "c", "d"][: draw(st.integers(1, 4))]
    knobs = []
    for name in names:
        choices = draw(st.lists(VALUES, max_size=4))
        other, value = draw(st.sampled_from(names)), draw(VALUES)
        needs = None
        if other != name and draw(st.booleans()):

            def needs(config: Mapping[str, Value], other: str = other, value: Value = value) -> bool:
                return not same_value(config[other], value)

        knobs.append(Knob(name, lambda known, choices=tuple(choices): choices, "", needs=needs))  # type: ignore[misc]
    written = {name: draw(VALUES) for name in names}
    pins = draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=1))
    known = Known(CPU, 4, knowledge=Knowledge(as_written=written))
    return resolve(SearchSpace("drawn", "none", tuple(knobs)), known, pinned=pins)


def _indices(space: ResolvedSpace, data: st.DataObject) -> dict[str, int]:
    return {axis.knob.name: data.draw(st.integers(0, len(axis.values) - 1)) for axis in space.axes}


@given(spaces())
def test_an_axis_holds_what_was_written_and_no_value_twice(space: ResolvedSpace) -> None:
    for axis in space.axes:
        assert same_value(axis.values[axis.as_written], space.knowledge.as_written[axis.knob.name])
        assert len({(type(value), value) for value in axis.values}) == len(axis.values) >= 2
    assert space.size == math.prod(len(axis.values) for axis in space.axes)
    named = {axis.knob.name for axis in space.axes} | set(space.left_out)
    assert named == {knob.name for knob in space.space.knobs}


@given(spaces(), st.data())
def test_a_canonical_config_is_its_own(space: ResolvedSpace, data: st.DataObject) -> None:
    config = space.config_of(_indices(space, data))
    assert space.canonical(config) == config
    assert space.canonical(space.complete(config)) == config


@given(spaces(), st.data())
def test_indices_and_canonical_configs_are_inverse(space: ResolvedSpace, data: st.DataObject) -> None:
    indices = _indices(space, data)
    config = space.config_of(indices)
    back = space.indices_of(config)
    assert space.config_of(back) == config
    for axis in space.axes:  # what is in the config is where it was drawn, the rest is as written
        name = axis.knob.name
        assert back[name] == (indices[name] if name in config else axis.as_written)
    if all(axis.knob.needs is None for axis in space.axes):
        assert back == indices


@given(spaces())
def test_as_written_is_the_baseline(space: ResolvedSpace) -> None:
    assert space.config_of({axis.knob.name: axis.as_written for axis in space.axes}) == space.pinned
    assert space.allows({})


@given(spaces(), st.data())
def test_a_pinned_knob_stays_pinned(space: ResolvedSpace, data: st.DataObject) -> None:
    config = space.config_of(_indices(space, data))
    for name, value in space.pinned.items():
        assert same_value(config[name], value)
        assert same_value(space.complete(config)[name], value)
        assert name in space.left_out


KNOWLEDGE = Knowledge(
    as_written={"num_workers": 0, "precision": "fp32", "batch_size": 64, "prefetch_factor": 2, "threads": 4,
                "persistent_workers": False, "grad_accumulation": 1},
    precisions=("fp32", "bf16"),
)  # fmt: skip


@given(st.data())
def test_the_declared_space_keeps_the_effective_batch(data: st.DataObject) -> None:
    space = resolve(TORCH, Known(CPU, 4, knowledge=KNOWLEDGE))
    config = space.config_of(_indices(space, data))
    assert space.canonical(config) == config
    complete = space.complete(config)
    assert int(complete["batch_size"]) * int(complete["grad_accumulation"]) == 64
    assert "prefetch_factor" not in config or "num_workers" in config
    assert ("grad_accumulation" in config) == ("batch_size" in config)
    assert space.config_of(space.indices_of(config)) == config


def test_knobs_that_become_moot_take_others_along() -> None:
    space = resolve(
        SearchSpace(
            "chain",
            "none",
            (
                Knob("c", lambda known: [1], "", needs=lambda config: config["b"] == 1),
                Knob("b", lambda known: [1], "", needs=lambda config: config["a"] == 1),
                Knob("a", lambda known: [1], ""),
            ),
        ),
        Known(CPU, 4, knowledge=Knowledge(as_written={"a": 0, "b": 0, "c": 0})),
    )
    assert space.canonical({"c": 1, "b": 1, "a": 0}) == {}
    assert space.canonical({"c": 1, "b": 1, "a": 1}) == {"a": 1, "b": 1, "c": 1}


def test_a_rule_of_the_space_does_not_undo_a_pin() -> None:
    knobs = (Knob("a", lambda known: [1, 2], ""), Knob("b", lambda known: [1, 2], ""))
    space = SearchSpace("rule", "none", knobs, derive=lambda complete, knowledge: {"b": complete["a"]})
    known = Known(CPU, 4, knowledge=Knowledge(as_written={"a": 1, "b": 1}))
    assert resolve(space, known).canonical({"a": 2}) == {"a": 2, "b": 2}
    pinned = resolve(space, known, pinned={"b": 1})
    assert pinned.canonical({"a": 2}) == {"a": 2, "b": 1}
    assert pinned.complete({"a": 2}) == {"a": 2, "b": 1}


def test_a_rule_decides_what_is_allowed_of_the_complete_config() -> None:
    knob = Knob("a", lambda known: [1, 2], "")
    space = SearchSpace("rule", "none", (knob,), allowed=lambda complete, known: complete["a"] != known.cardinality)
    resolved = resolve(space, Known(CPU, 4, knowledge=Knowledge(as_written={"a": 1}, cardinality=2)))
    assert resolved.allows({}) and not resolved.allows({"a": 2})


UNSELECTED = LeftOut("not selected", unselected=True)


@pytest.mark.parametrize(
    ("selection", "pinned", "searched", "reason"),
    [
        ((), {}, {"a", "b"}, {}),
        (("a",), {}, {"a"}, {"b": UNSELECTED}),
        (("-a",), {}, {"b"}, {"a": UNSELECTED}),
        (("a", "b", "-a"), {}, {"b"}, {"a": UNSELECTED}),
        (("a",), {"a": 2}, set(), {"a": LeftOut("pinned to 2"), "b": UNSELECTED}),
    ],
)
def test_what_is_searched_is_selected_and_not_pinned(
    selection: tuple[str, ...], pinned: Config, searched: set[str], reason: dict[str, LeftOut]
) -> None:
    space = SearchSpace("small", "none", (Knob("a", lambda k: [1, 2], ""), Knob("b", lambda k: [1, 2], "")))
    resolved = resolve(
        space, Known(CPU, 4, knowledge=Knowledge(as_written={"a": 1, "b": 1})), selection=selection, pinned=pinned
    )
    assert {axis.knob.name for axis in resolved.axes} == searched
    assert resolved.left_out == reason


A_IS_1 = Knowledge(as_written={"a": 1})


@pytest.mark.parametrize(
    ("knob", "knowledge", "reason"),
    [
        (Knob("a", lambda k: [1, 2], "", devices=frozenset({"cuda"})), A_IS_1, "nothing on cpu"),
        (Knob("a", lambda k: [1, 2], ""), Knowledge(as_written={"a": 1}, left_out={"a": "a reason"}), "a reason"),
        (Knob("a", lambda k: [1, 2], ""), Knowledge(), "nothing in the script"),
        (Knob("a", lambda k: [1, 2], "", refuses=lambda k: "not here"), A_IS_1, "not here"),
        (Knob("a", lambda k: [1, 1], ""), A_IS_1, "only one value"),
    ],
)
def test_a_knob_is_left_out_for_a_reason(knob: Knob, knowledge: Knowledge, reason: str) -> None:
    resolved = resolve(SearchSpace("one", "none", (knob,)), Known(CPU, 4, knowledge=knowledge))
    assert resolved.axes == ()
    left = resolved.left_out["a"]
    assert reason in left.reason and not left.unselected


@pytest.mark.parametrize("arguments", [{"selection": ["x"]}, {"selection": ["-x"]}, {"selection": ["--a"]}])
def test_an_unknown_knob_is_told_with_those_there_are(arguments: dict[str, list[str]]) -> None:
    space = SearchSpace("one", "none", (Knob("a", lambda k: [1, 2], ""),))
    with pytest.raises(UnknownKnobError) as caught:
        resolve(space, Known(CPU, 4), selection=arguments["selection"])
    assert "are: a" in caught.value.hint
    with pytest.raises(UnknownKnobError):
        resolve(space, Known(CPU, 4), pinned={"x": 1})


def test_ordered_values_are_in_order_and_written_ones_among_them() -> None:
    space = SearchSpace("one", "none", (Knob("a", lambda k: [8, 2, 4, 2], "", ordered=True),))
    (axis,) = resolve(space, Known(CPU, 4, knowledge=Knowledge(as_written={"a": 3}))).axes
    assert axis.values == (2, 3, 4, 8)
    assert axis.as_written == 1


def test_a_value_that_no_axis_has_has_no_index() -> None:
    space = SearchSpace("one", "none", (Knob("a", lambda k: [1, 2], ""),))
    resolved = resolve(space, Known(CPU, 4, knowledge=Knowledge(as_written={"a": 1})))
    assert resolved.indices_of({"a": 2}) == {"a": 1}
    for stranger in (3, 2.0, True):
        with pytest.raises(ValueError, match="none of"):
            resolved.indices_of({"a": stranger})
        assert resolved.row_of(Config(a=stranger)) is None


def test_a_value_that_stands_alone_is_named_as_it_is_written_elsewhere() -> None:
    knobs = (Knob("a", lambda k: [False], ""), Knob("b", lambda k: ["x"], ""), Knob("c", lambda k: [1, 2], ""))
    known = Known(CPU, 4, knowledge=Knowledge(as_written={"a": False, "b": "x", "c": 1}))
    left_out = resolve(SearchSpace("three", "none", knobs), known).left_out
    assert {name: why.reason.rpartition(": ")[2] for name, why in left_out.items()} == {"a": "false", "b": "x"}


def test_what_no_axis_turns_has_no_row() -> None:
    """A knob that the study leaves out, or a larger batch: the row would be that of another config."""
    knobs = (Knob("a", lambda k: [1, 2], ""), Knob("b", lambda k: [1, 2], ""))
    known = Known(CPU, 4, knowledge=Knowledge(as_written={"a": 1, "b": 1}))
    resolved = resolve(SearchSpace("two", "none", knobs), known, pinned={"b": 2})
    assert resolved.row_of(Config(a=2)) == resolved.row_of(Config(a=2, b=2)) == (1,), "what is pinned needn't be said"
    assert resolved.row_of(Config(a=2, b=1)) is None and resolved.row_of(Config(a=2, c=2)) is None


def test_a_knob_is_declared_once() -> None:
    with pytest.raises(SpaceError, match="twice"):
        SearchSpace("one", "none", (Knob("a", lambda k: [], ""), Knob("a", lambda k: [], "")))
