"""A config is a value: equal ones are one key, and nothing changes one. A trial gives its measurement once complete."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import worlds

from tuner.model import BASELINE, Config, OutcomeKind, Phase, Ratio, TierBest, Trial, Value, same_value

VALUES = st.booleans() | st.integers(-2, 2) | st.sampled_from([-1.0, 0.0, -0.0, 1.0, 0.5]) | st.sampled_from(["", "1"])
KNOBS = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES)


@given(KNOBS, KNOBS)
def test_equal_configs_are_one_key(one: dict[str, Value], other: dict[str, Value]) -> None:
    equal = Config(one) == Config(other)
    assert equal == (one.keys() == other.keys() and all(same_value(one[knob], other[knob]) for knob in one))
    assert equal == (Config(one) == other) == (one == Config(other))
    if equal:
        assert hash(Config(one)) == hash(Config(other))
    assert len({Config(one), Config(other)}) == (1 if equal else 2)


@given(KNOBS)
def test_a_config_is_its_knobs_in_the_order_given(knobs: dict[str, Value]) -> None:
    config = Config(knobs)
    assert dict(config) == knobs and list(config) == list(knobs)
    assert bool(config) == bool(knobs)
    turned_around = Config(dict(reversed(knobs.items())))
    assert config == turned_around and hash(config) == hash(turned_around)
    assert list(turned_around) == list(reversed(knobs))
    evaluated = eval(repr(config), {"Config": Config})
    for copied in (evaluated, copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert type(copied) is Config and copied == config and list(copied) == list(config)


def test_the_type_of_a_value_belongs_to_it() -> None:
    configs = [Config(a=value) for value in (True, 1, 1.0, "1", False, 0)]
    assert len(set(configs)) == len(configs)
    assert Config(a=1) != {"a": True} and Config(a=1) != {"a": 1.0} and Config(a=1) == {"a": 1}
    assert Config(a=1) != [("a", 1)]
    assert {Config(a=1): "found"}.get(Config(a=True)) is None


def test_nothing_changes_a_config() -> None:
    knobs: dict[str, Value] = {"a": 1}
    config = Config(knobs)
    knobs["a"] = 2
    assert config == {"a": 1}
    with pytest.raises(TypeError):
        config["a"] = 2  # type: ignore[index]  # that there is no such method is what is tested
    with pytest.raises(AttributeError):
        config.a = 2  # type: ignore[attr-defined]  # likewise


def test_the_empty_config_is_the_baseline() -> None:
    assert BASELINE == Config() == Config({}) == {} and not BASELINE and len(BASELINE) == 0


def test_a_config_is_made_of_a_mapping_and_of_knobs_that_win() -> None:
    assert Config({"a": 1, "b": 2}, b=3, c=4) == {"a": 1, "b": 3, "c": 4}
    assert Config({"values": 1, "self": 2}, values=3) == {"values": 3, "self": 2}
    assert Config(Config(a=1), b=2) == {**Config(a=1), "b": 2}


def test_a_record_that_holds_a_config_can_be_taken_apart() -> None:
    best = TierBest(1, Config(a=1), 1.2, Ratio(1.2, 1.1, 1.3), True, "pass")
    assert asdict(best)["config"] == {"a": 1}
    assert json.loads(json.dumps(asdict(best), default=dict))["config"] == {"a": 1}


def test_only_a_complete_trial_has_a_measurement() -> None:
    complete = Trial(1, Phase.SEARCH, Config(a=1), "", worlds.measured(100.0))
    assert complete.outcome is not None and complete.measurement is complete.outcome.measurement is not None
    assert Trial(1, Phase.SEARCH, Config(a=1)).measurement is None
    too_large = replace(complete.outcome, kind=OutcomeKind.INFEASIBLE)
    assert too_large.measurement is not None and replace(complete, outcome=too_large).measurement is None
