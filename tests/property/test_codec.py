"""Whatever the model can hold comes back from its text exactly; whatever else is there is a ``ValueError``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.child.counts import EpochUse, ScalerCounts
from tuner.child.records import LoaderUse
from tuner.knowledge import Knowledge
from tuner.model import (
    Block,
    CardUse,
    Config,
    Energy,
    Evidence,
    FirstGradient,
    KnobReport,
    LossSeries,
    Measurement,
    Outcome,
    OutcomeKind,
    Ratio,
    Rotated,
    Value,
    WeightChange,
)
from tuner.storage import codec

TEXT = st.text(max_size=12)
FLOATS = st.floats()
VALUES: st.SearchStrategy[Value] = st.booleans() | st.integers() | FLOATS | TEXT
KEYS = TEXT | st.sampled_from(["$float", "$items", "$"])
TREES = st.recursive(
    st.none() | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
REPORTS = st.builds(
    KnobReport, TEXT, VALUES, st.integers(), st.integers(), st.sampled_from(Evidence), TEXT, st.none() | VALUES
)
CARDS = st.builds(
    CardUse, st.integers(), st.none() | FLOATS, st.none() | FLOATS, st.none() | FLOATS, st.integers(), st.integers(),
    st.none() | FLOATS,
)  # fmt: skip
PLAN_LINES = st.tuples(st.integers(), TEXT, st.none() | st.integers() | TEXT, st.none() | st.integers())
INPUTS = st.lists(st.tuples(FLOATS, FLOATS), max_size=2).map(tuple)
GRADIENTS = st.builds(FirstGradient, FLOATS, FLOATS, st.booleans(), st.booleans(), INPUTS)
LOSSES = st.builds(LossSeries, TEXT, TEXT, st.lists(st.tuples(FLOATS, FLOATS), max_size=3).map(tuple))
CHANGES = st.builds(WeightChange, TEXT, st.integers(), FLOATS, TEXT)
ROTATED = st.builds(
    Rotated, st.dictionaries(KEYS, VALUES, max_size=2).map(Config),
    st.none() | st.builds(Ratio, FLOATS, FLOATS, FLOATS), st.integers(), TEXT,
)  # fmt: skip
MEASUREMENTS = st.builds(
    Measurement,
    **dict.fromkeys(("rate", "low", "high", "steps_per_s", "first_step_s"), FLOATS),
    data_wait_share=st.none() | FLOATS,
    **dict.fromkeys(("compile_s", "cpu_s_per_sample", "foreign_cpus", "stolen_cpus"), FLOATS),
    card=st.none() | CARDS,
    unit=TEXT,
    blocks=st.lists(st.builds(Block, FLOATS, st.integers(), FLOATS, FLOATS), max_size=3).map(tuple),
    peak_host_bytes=st.integers(),
    peak_device_bytes=st.integers(),
    losses=st.lists(LOSSES, max_size=2).map(tuple),
    steady=st.booleans(),
    knobs=st.lists(REPORTS, max_size=2).map(tuple),
    metrics=st.dictionaries(KEYS, FLOATS, max_size=2),
    notes=st.lists(TEXT, max_size=2).map(tuple),
    scaled_steps=st.integers(),
    skipped_steps=st.integers(),
    gradient=st.none() | GRADIENTS,
    weights=st.lists(CHANGES, max_size=2).map(tuple),
    first_metrics=st.dictionaries(KEYS, FLOATS, max_size=2),
    compile_cache=st.sampled_from(["", "cold", "warm", "mixed"]),
    queue_share=FLOATS,
    **dict.fromkeys(("tokens_per_s", "validation_share", "warmup_extra_s"), st.none() | FLOATS),
    energy=st.builds(Energy, st.none() | FLOATS, st.none() | FLOATS),
)
WHOLE = st.integers(0, 2**63)
KNOWLEDGE = st.builds(
    Knowledge,
    as_written=st.dictionaries(KEYS, VALUES, max_size=3),
    **dict.fromkeys(("left_out", "options", "option_flags"), st.dictionaries(KEYS, TEXT, max_size=2)),
    **dict.fromkeys(("suggested", "optimizers", "precisions", "remarks"), st.lists(TEXT, max_size=2).map(tuple)),
    counted_steps=st.lists(WHOLE, max_size=2).map(tuple),
    acts_by_batch=TEXT,
    **dict.fromkeys(("steps", "retraces"), WHOLE),
    **dict.fromkeys(
        ("dataset_len", "cardinality", "cache_bytes", "gradient_bytes", "free_host_bytes"), st.none() | st.integers()
    ),
    samples=FLOATS.map(lambda count: count + 0.0),  # no negative zero: that is not told apart from nothing
    unit=TEXT,
    set_apart=TEXT,
    loaders=st.lists(st.builds(LoaderUse, TEXT, WHOLE, st.none() | WHOLE), max_size=2).map(tuple),
    products=st.dictionaries(KEYS, WHOLE, max_size=2),
    gradient_scaler=st.none() | st.builds(ScalerCounts, WHOLE, WHOLE, WHOLE, WHOLE),
    epoch=st.none() | st.builds(EpochUse, WHOLE, FLOATS, WHOLE, FLOATS, WHOLE, FLOATS, st.booleans()),
    arguments=st.dictionaries(KEYS, VALUES, max_size=2),
    batch_waits=st.lists(FLOATS, max_size=2).map(tuple),
    input_plan=st.none() | st.lists(PLAN_LINES, max_size=2).map(tuple),
    beside=st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=2), max_size=2),
    **dict.fromkeys(("batch_norm", "wait_is_unseen", "device_clean"), st.booleans()),
)
OUTCOMES = st.builds(
    Outcome, st.sampled_from(OutcomeKind), TEXT, TEXT, TEXT, st.none() | MEASUREMENTS,
    KNOWLEDGE, FLOATS, TEXT, st.lists(ROTATED, max_size=2).map(tuple),
)  # fmt: skip


def _exact(one: Any, other: Any) -> bool:
    """Equal in type and value, NaN and the sign of zero included."""
    if isinstance(one, float) and isinstance(other, float):
        same_sign = math.copysign(1, one) == math.copysign(1, other)
        return (math.isnan(one) and math.isnan(other)) or (one == other and same_sign)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return set(one) == set(other) and all(_exact(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) == len(other) and all(_exact(a, b) for a, b in zip(one, other, strict=True))
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and _exact(vars(one), vars(other))
    return type(one) is type(other) and bool(one == other)


def test_exactness_tells_apart_what_python_does_not() -> None:
    assert _exact(math.nan, math.nan) and _exact({"a": [0.0, None]}, {"a": [0.0, None]})
    for one, other in [(True, 1), (1, 1.0), (0.0, -0.0), ([1], (1,)), ({"a": 1}, {"a": 1, "b": 2}), (math.nan, 1.0)]:
        assert not _exact(one, other)


@given(TREES)
def test_a_value_comes_back(tree: Any) -> None:
    text = codec.dumps(tree)
    assert text.isascii()
    assert _exact(codec.loads(text), tree)
    assert _exact(codec.loads(text.encode()), tree)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_a_config_comes_back_and_its_text_does_not_depend_on_the_order(config: dict[str, Value]) -> None:
    text = codec.encode_config(Config(config))
    assert _exact(codec.decode_config(text), config)
    assert codec.encode_config(Config(dict(reversed(config.items())))) == text


@given(OUTCOMES)
def test_an_outcome_comes_back(outcome: Outcome) -> None:
    assert _exact(codec.decode_outcome(codec.encode_outcome(outcome)), outcome)


@given(OUTCOMES, st.data())
def test_a_torn_outcome_is_told(outcome: Outcome, data: st.DataObject) -> None:
    text = codec.encode_outcome(outcome).encode()
    with pytest.raises(ValueError):
        codec.decode_outcome(text[: data.draw(st.integers(0, len(text) - 1))])


@given(TREES.map(json.dumps) | st.text() | st.binary())
def test_foreign_text_is_read_or_told(text: str | bytes) -> None:
    for decode in (codec.loads, codec.decode_config, codec.decode_outcome):
        try:
            decode(text)
        except ValueError:
            continue  # the one error that is promised


@given(MEASUREMENTS)
def test_a_measurement_of_an_earlier_version_is_read(measurement: Measurement) -> None:
    without = replace(measurement, stolen_cpus=0.0, card=None, energy=Energy())
    fields = codec.measurement_fields(without)
    earlier = {name: value for name, value in fields.items() if name not in ("stolen_cpus", "card", "energy")}
    assert _exact(codec.measurement_of_fields(earlier), without)


@given(OUTCOMES, st.data())
def test_an_outcome_that_lacks_a_field_is_told(outcome: Outcome, data: st.DataObject) -> None:
    fields = json.loads(codec.encode_outcome(outcome))
    required = fields.keys() - {"with_ours", "rotation"}  # earlier versions had none
    del fields[data.draw(st.sampled_from(sorted(required)))]
    with pytest.raises(ValueError):
        codec.decode_outcome(json.dumps(fields))


@pytest.mark.parametrize(
    "text", ['{"$float": null}', '{"$float": []}', '{"$items": 3}', '{"$items": [1]}', "[" * 100_000, '{"$float": "x"}']
)
def test_a_malformed_escape_is_told(text: str) -> None:
    with pytest.raises(ValueError):
        codec.loads(text)


@pytest.mark.parametrize("text", ["[]", "3", '{"a": null}', '{"a": [1]}', '{"a": {"b": 1}}'])
def test_what_is_no_config_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="not a config"):
        codec.decode_config(text)


def test_foreign_objects_become_what_json_has() -> None:
    assert codec.loads(codec.dumps({"kind": OutcomeKind.CRASHED, 1: (2, {3}), "path": object})) == {
        "kind": "crashed", "1": [2, [3]], "path": str(object),
    }  # fmt: skip


def test_an_outcome_of_an_earlier_version_is_read() -> None:
    fields = json.loads(codec.encode_outcome(Outcome(OutcomeKind.CRASHED)))
    fields["facts"] = {
        "as_written": {"batch_size": 8, "sizes": [1, None], "nothing": None, "lr": {"$float": "inf"}},
        "dataset_len": None, "gradient_scaler": None, "of_another_version": [1],
        "loaders": [{"key": "a", "fetches": 2}],
    }  # fmt: skip
    knowledge = codec.decode_outcome(json.dumps(fields)).knowledge
    as_written: dict[str, Value] = {"batch_size": 8, "sizes": "[1, None]", "lr": math.inf}
    assert knowledge == Knowledge(as_written=as_written, loaders=(LoaderUse("a", 2),))


def test_facts_that_cannot_be_read_are_named() -> None:
    fields = json.loads(codec.encode_outcome(Outcome(OutcomeKind.CRASHED)))
    with pytest.raises(ValueError, match=r"facts\.steps is 'many', not a whole number"):
        codec.decode_outcome(json.dumps({**fields, "facts": {"steps": "many"}}))
