"""Devices side by side: what people are told of figures that can't be held against each other."""

from __future__ import annotations

from dataclasses import replace

from support import fleet

from tuner.analysis.fleet import OnDevice, compare
from tuner.export.figures import read
from tuner.model import Energy
from tuner.report.compared import conclusions


def with_host_joules(memory: float | None) -> OnDevice:
    """The made-up card's profile, with such a part of main memory in the joules of its host."""
    [profile] = read(fleet.content(fleet.ON_CARD), fleet.PLACE)
    assert profile.winner is not None
    return replace(profile, winner=replace(profile.winner, energy=Energy(0.0009, None, memory)))


def about_joules(*profiles: OnDevice) -> list[str]:
    return [line for line in conclusions(compare(profiles, {}), {}) if "joules" in line]


def test_hosts_that_count_main_memory_and_hosts_that_do_not_are_told_apart() -> None:
    counted, alone, unknown = with_host_joules(0.0002), with_host_joules(0.0), with_host_joules(None)
    [told] = about_joules(counted, alone, counted)
    assert told == "joules of the host can't be held against each other: [1] and [3] with main memory; [2] without it"
    [told] = about_joules(counted, unknown)
    assert told.endswith("[1] with main memory; of [2] nobody noted whether")
    assert about_joules(counted, counted) == about_joules(alone, alone) == []
