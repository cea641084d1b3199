"""Devices side by side: what people are told of figures that can't be held against each other."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from support import fleet, made_up

from tuner.analysis.fleet import OnDevice, compare
from tuner.documents import comparison_document
from tuner.export.figures import read
from tuner.formatting import config_text, gain_text
from tuner.model import Energy, Winner
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


@pytest.mark.parametrize(
    ("winner", "answer"),
    [
        (made_up.RESULT.winner, "faster: num_workers=2 precision=bf16"),
        (made_up.KEEP, "keep your config, or take larger batches (tier 3): nothing was proven to be faster in 3 runs"),
    ],
)
def test_a_proven_larger_batch_is_told_of_beside_what_is_applied(winner: Winner, answer: str) -> None:
    """The summary of its study did so, too."""
    result = fleet.of(fleet.CARD, winner=winner, larger=made_up.LARGER, screened=(made_up.LARGER_SCREENED,))
    [profile] = read(fleet.content(result), fleet.PLACE)
    compared = compare([profile], {})
    *_, told, larger = headings(compared)
    assert told.strip().startswith(answer)
    sooner = made_up.LARGER.sooner
    assert sooner is not None and gain_text(sooner.ratio) in larger
    assert config_text(made_up.LARGER_CONFIG) in larger and "autotune run --tier 3" in larger
    assert comparison_document(compared)["profiles"][0]["tier3"] == {
        "config": dict(made_up.LARGER_CONFIG), "time_to_loss": asdict(sooner),
    }  # fmt: skip


def test_a_larger_batch_that_is_not_proven_is_not_told_of() -> None:
    unproven = replace(made_up.LARGER, why="no time left to compare how it learns", winner=None, sooner=None)
    [profile] = read(fleet.content(fleet.of(fleet.CARD, larger=unproven)), fleet.PLACE)
    assert len(headings(compare([profile], {}))) == 3
    assert comparison_document(compare([profile], {}))["profiles"][0]["tier3"] is None
