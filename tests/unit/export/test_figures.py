"""The figures of a best.json come back as they were written, and what is no figure is named with its place."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import fleet, made_up

from tuner.analysis.fleet import Doubt, OnDevice, compare, doubt_of
from tuner.analysis.learning import LATER
from tuner.errors import ProfileError
from tuner.export.figures import read
from tuner.model import Energy, Verdict
from tuner.report.compared import conclusions


def changed(**changes: Any) -> bytes:
    """The file of one device with other fields; of a measurement, other fields of it."""
    document = json.loads(fleet.content(fleet.ON_CARD))
    [entry] = document["profiles"]
    for name, value in changes.items():
        entry[name] = {**entry[name], **value} if isinstance(value, dict) and isinstance(entry[name], dict) else value
    return json.dumps(document).encode()


def test_each_device_comes_back_with_its_figures() -> None:
    cpu, card = read(fleet.content(fleet.ON_CPU, fleet.ON_CARD), "best.json")
    assert (cpu.device, card.device) == (fleet.CPU, fleet.CARD)
    assert cpu.config == card.config == made_up.CONFIG
    assert cpu.speedup == made_up.WINNER.speedup
    assert card.objective == "throughput (samples/s)"
    assert (cpu.free, cpu.edited, cpu.runs) == (False, False, 5)
    assert card.written is not None and card.winner is not None
    assert (card.written.rate, card.winner.rate, card.winner.low, card.winner.high) == (40000, 61000, 59800, 62100)
    assert card.winner.proven and card.winner.peak_device_bytes == 3 * 2**30
    assert card.winner.energy == Energy(0.0009, 0.0104, 0.0002)
    assert cpu.energy_unknown == fleet.NO_RAPL and card.energy_unknown == {}
    assert cpu.circumstances.cores == 4 and card.circumstances.software["driver"] == "570.86"


def test_an_earlier_version_said_less() -> None:
    document = json.loads(fleet.content(fleet.ON_CARD))
    [entry] = document["profiles"]
    for name in ("objective", "energy_unknown", "cores", "checksum"):
        del entry[name]
    for name in ("baseline", "winner"):
        del entry[name]["energy"]
    [profile] = read(json.dumps(document).encode(), "best.json")
    assert (profile.objective, profile.energy_unknown, profile.edited) == ("", None, None)
    assert profile.winner is not None and profile.winner.energy == Energy()


def finals(label: str) -> OnDevice:
    """The profile of a study whose finals ended with that label, and proved nothing."""
    undecided = replace(fleet.WINNER, verdict=Verdict.KEEP_BASELINE, label=label)
    [profile] = read(fleet.content(fleet.of(fleet.CARD, winner=undecided)), "best.json")
    return profile


def test_rounds_that_others_disturbed_rank_no_device() -> None:
    """Five of them, that proved nothing of the config either: what others took of the machine is in the rate."""
    busy = finals("no proof: other processes kept the machine busy in 4 of 5 rounds")
    assert doubt_of(busy) is Doubt.DISTURBED
    assert busy.disturbed == "other processes kept the machine busy in 4 of 5 rounds"
    calm = finals("")
    assert doubt_of(calm) is doubt_of(finals(LATER)) is None and calm.disturbed == ""
    compared = compare([calm, busy], {})
    assert compared.rates[0].ahead == compared.rates[0].undecided == ()
    [told] = [line for line in conclusions(compared, {}) if line.startswith("[2] isn't ranked")]
    assert told.endswith("others disturbed its finals: other processes kept the machine busy in 4 of 5 rounds")


def test_ends_of_an_interval_that_are_not_known_are_far_away() -> None:
    [profile] = read(changed(baseline={"low": None, "high": None}), "best.json")
    assert profile.written is not None
    assert (profile.written.low, profile.written.high) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"winner": {"rate": "fast"}}, "winner.rate is 'fast', not a number"),
        ({"winner": {"rate": -3}}, "are no rate with its interval"),
        ({"winner": {"low": 99999}}, "are no rate with its interval"),
        ({"winner": {"unit": "sam\x1bples"}}, "winner.unit is "),
        ({"winner": {"based_on": "a dream"}}, "winner.based_on is 'a dream', not finals or single trial"),
        ({"winner": {"peak_host_bytes": -1}}, "winner.peak_host_bytes is -1"),
        ({"winner": {"energy": {"host_joules_per_sample": -1}}}, "winner.host_joules_per_sample is -1"),
        ({"winner": {"energy": "much"}}, "winner.energy is 'much', not an object"),
        ({"baseline": []}, r"baseline is \[\], not an object"),
        ({"speedup": {"low": "twice"}}, "speedup.low is 'twice', not a number"),
        ({"speedup": {"low": 99.0}}, "are no ratio with its interval"),
        ({"device": {"name": ["a", "list"]}}, r"device.name is \['a', 'list'\], not a text"),
        ({"runs": "many"}, "runs is 'many', not a whole number"),
        ({"objective": 3}, "objective is 3, not a text"),
        ({"energy_unknown": {"host": 3}}, "energy_unknown.host is 3, not a text"),
    ],
)
def test_what_is_no_figure_is_named_with_its_place(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ProfileError, match=rf"^best\.json: profiles\[0\] does not match schema 1: .*{says}"):
        read(changed(**changes), "best.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8,
)  # fmt: skip
FIELDS = (
    "device", "cores", "config", "objective", "verdict", "speedup", "runs", "baseline", "winner", "limits", "script",
    "environment", "energy_unknown", "knowledge", "checksum", "tier3",
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=3))
def test_any_entry_is_read_or_refused(changes: dict[str, Any]) -> None:
    document = json.loads(fleet.content(fleet.ON_CARD))
    document["profiles"][0].update(changes)
    try:
        [profile] = read(json.dumps(document).encode(), "best.json")
    except ProfileError as error:
        assert error.message.startswith("best.json") and error.hint
    else:
        assert profile.written is None or profile.written.rate >= 0
