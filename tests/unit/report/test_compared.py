"""Devices side by side: what people are told of figures that can't be held against each other."""

from __future__ import annotations

from dataclasses import replace

from support import fleet

from tuner.analysis.fleet import OnDevice, compare
from tuner.documents import comparison_document
from tuner.export.figures import read
from tuner.model import Energy
from tuner.report.compared import conclusions, headings


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


def test_who_trained_in_several_ranks_is_told_beside_who_did_not() -> None:
    [alone] = read(fleet.content(fleet.ON_CARD), fleet.PLACE)
    together = replace(alone, ranks=2)
    compared = compare([alone, together], {})
    assert ", 2 ranks (" in headings(compared)[3] and "ranks" not in headings(compared)[0]
    [told] = [line for line in conclusions(compared, {}) if "ranks" in line]
    assert told.startswith("[2] trained in 2 ranks and [1] in 1: a step takes another number of samples there")
    assert not [line for line in conclusions(compare([together, together], {}), {}) if "ranks" in line]
    eight = compare([alone, replace(alone, devices=8)], {})
    assert ", as 8 devices (" in headings(eight)[3]
    assert [each["devices"] for each in comparison_document(eight)["profiles"]] == [1, 8]
