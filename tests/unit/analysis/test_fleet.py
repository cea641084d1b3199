"""Devices are ranked where that follows from their runs, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.analysis.circumstances import Circumstances, ProvenPart
from tuner.analysis.fleet import (
    FEWEST_RUNS,
    FINALS,
    SINGLE_TRIAL,
    Doubt,
    LoopFigures,
    OnDevice,
    compare,
    differences,
    doubt_of,
    order_of,
    price_per_million,
)
from tuner.model import BASELINE, Config, Device, Ratio, Script

SCRIPT = Script("train.py", ("--epochs", "3"), sha256="ab" * 32)


def figures(rate: float, **changes: Any) -> LoopFigures:
    return replace(LoopFigures(rate, rate * 0.98, rate * 1.02, "samples", FINALS, 2**30), **changes)


def profile(rate: float, **changes: Any) -> OnDevice:
    """A device on which nothing was faster than the script as written, at that rate."""
    device = Device("cpu", 0, f"CPU of {rate}", f"CPU of {rate}", 2**34)
    own = OnDevice(
        "best.json", device, Circumstances(SCRIPT, {"torch": "2.13"}, {}, 4), "throughput (samples/s)", False, False,
        BASELINE, None, 5, figures(rate), None,
    )  # fmt: skip
    return replace(own, **changes)


def test_a_rank_follows_from_runs_that_lie_apart() -> None:
    compared = compare([profile(100.0), profile(102.0), profile(200.0)], {})
    assert compared.groups == ((0, 1, 2),)
    [rates] = compared.rates
    assert set(rates.ahead) == {(2, 0), (2, 1)}
    assert rates.undecided == ((0, 1),)


def test_who_is_faster_is_by_what_is_applied() -> None:
    tuned = profile(100.0, config=Config(num_workers=2), winner=figures(300.0))
    assert compare([tuned, profile(200.0)], {}).rates[0].ahead == ((0, 1),)
    lost = replace(tuned, winner=None)
    assert doubt_of(lost) is Doubt.NOTHING_MEASURED, "the script as written isn't what is applied"


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({}, None),
        ({"edited": True}, Doubt.EDITED),
        ({"edited": None}, None),
        ({"written": figures(500.0, based_on=SINGLE_TRIAL)}, Doubt.NOT_PROVEN),
        ({"written": None}, Doubt.NOTHING_MEASURED),
        ({"runs": FEWEST_RUNS - 1}, Doubt.FEW_RUNS),
        ({"runs": FEWEST_RUNS}, None),
    ],
)
def test_what_is_in_doubt_is_not_ranked(changes: dict[str, Any], doubt: Doubt | None) -> None:
    doubtful = profile(500.0, **changes)
    assert doubt_of(doubtful) is doubt
    compared = compare([profile(100.0), doubtful], {0: 1.0, 1: 1.0})
    assert bool(compared.rates[0].ahead) is (doubt is None)
    assert bool(compared.prices[0].ahead) is (doubt is None)


def test_devices_that_are_alike_seldom_lie_apart_in_so_many_runs() -> None:
    """Of all the orders in which their runs may come."""

    def chance(runs: int) -> float:
        orders = list(combinations(range(2 * runs), runs))
        apart = [one for one in orders if one in (tuple(range(runs)), tuple(range(runs, 2 * runs)))]
        return len(apart) / len(orders)

    assert chance(FEWEST_RUNS) < 0.05 < chance(FEWEST_RUNS - 1)


OTHER = Circumstances(SCRIPT, {"torch": "2.13"}, {}, 4)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"circumstances": replace(OTHER, script=replace(SCRIPT, sha256="cd" * 32))}, ProvenPart.SCRIPT),
        ({"circumstances": replace(OTHER, script=replace(SCRIPT, sha256=""))}, ProvenPart.SCRIPT),
        ({"circumstances": replace(OTHER, script=replace(SCRIPT, argv=("--epochs", "4")))}, ProvenPart.ARGUMENTS),
        ({"objective": "tokens (tokens/s)"}, ProvenPart.OBJECTIVE),
        ({"objective": ""}, ProvenPart.OBJECTIVE),
        ({"free": True}, ProvenPart.EFFECTIVE_BATCH),
        ({"written": figures(500.0, unit="steps")}, ProvenPart.UNIT),
    ],
)
def test_what_was_measured_otherwise_is_in_a_group_of_its_own(changes: dict[str, Any], part: ProvenPart) -> None:
    one, other = profile(100.0), profile(500.0, **changes)
    assert [change.part for change in differences(one, other)] == [part]
    assert [change.part for change in differences(other, one)] == [part]
    compared = compare([one, other, one], {})
    assert compared.groups == ((0, 2), (1,))
    assert [rates.ahead for rates in compared.rates] == [(), ()]


def test_modules_of_the_users_count_as_the_script() -> None:
    one, other = (
        profile(rate, circumstances=replace(OTHER, modules={"model.py": of}))
        for rate, of in ((100.0, "1"), (500.0, "2"))
    )
    assert [change.part for change in differences(one, other)] == [ProvenPart.MODULE]
    assert compare([one, other], {}).groups == ((0,), (1,))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_what_is_not_known_brings_no_two_others_together(order: tuple[int, ...]) -> None:
    """Of what an earlier version wrote nobody knows the modules; of what has no figures nobody knows the unit."""
    ones, twos = (profile(9.0, circumstances=replace(OTHER, modules={"model.py": of})) for of in "12")
    unknown = profile(5.0)
    assert grouped([ones, twos, unknown], order) == {(0,), (1,), (2,)}
    samples, steps = profile(1.0), profile(9.0, written=figures(9.0, unit="steps"))
    assert {0, 1} not in [{*group} & {0, 1} for group in grouped([samples, steps, profile(5.0, written=None)], order)]


def grouped(profiles: list[OnDevice], order: tuple[int, ...]) -> set[tuple[int, ...]]:
    """The groups of the profiles where they are given in that order, by their numbers in the list."""
    groups = compare([profiles[number] for number in order], {}).groups
    return {tuple(sorted(order[place] for place in group)) for group in groups}


def test_other_software_and_other_cores_belong_to_what_is_compared() -> None:
    other = profile(500.0, circumstances=Circumstances(SCRIPT, {"torch": "2.9", "driver": "570"}, {}, 64))
    assert {change.part for change in differences(profile(100.0), other)} == {ProvenPart.SOFTWARE}
    assert compare([profile(100.0), other], {}).rates[0].ahead == ((1, 0),)


def test_the_cheaper_one_may_be_the_slower_one() -> None:
    compared = compare([profile(100.0), profile(500.0), profile(505.0)], {0: 0.36, 1: 3.6})
    assert compared.rates[0].ahead == ((1, 0), (2, 0))
    assert compared.prices[0].ahead == ((0, 1),), "one without a price isn't ranked by it"
    price = price_per_million(figures(100.0), 0.36)
    assert price is not None and price.ratio == pytest.approx(1.0)
    assert [price.low, price.high] == pytest.approx([1 / 1.02, 1 / 0.98])


def test_steps_have_no_price_for_samples() -> None:
    assert price_per_million(figures(100.0, unit="steps"), 1.0) is None
    assert price_per_million(figures(0.0), 1.0) is None
    unsure = price_per_million(figures(100.0, low=-1.0), 1.0)
    assert unsure is not None and unsure.high == float("inf")


RANGES = st.tuples(st.floats(0.1, 1e6), st.floats(1.0, 3.0), st.floats(1.0, 3.0)).map(
    lambda drawn: Ratio(drawn[0], drawn[0] / drawn[1], drawn[0] * drawn[2])
)


@given(st.dictionaries(st.integers(0, 9), RANGES, max_size=6), st.booleans())
def test_each_pair_is_decided_or_not_and_never_both_ways(ranges: dict[int, Ratio], more_is_better: bool) -> None:
    order = order_of(ranges, more_is_better=more_is_better)
    pairs = [frozenset(pair) for pair in (*order.ahead, *order.undecided)]
    assert len(pairs) == len(set(pairs)) == len(ranges) * (len(ranges) - 1) // 2
    for better, worse in order.ahead:
        if more_is_better:
            assert ranges[better].low > ranges[worse].high
        else:
            assert ranges[better].high < ranges[worse].low
    for one, other in order.undecided:
        assert ranges[one].low <= ranges[other].high and ranges[other].low <= ranges[one].high
