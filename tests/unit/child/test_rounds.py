"""The rounds of a rotation: the order of turns, what they are held against, and who is far behind."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.child.records import Block, Phase
from tuner.child.rounds import (
    GROUP,
    ROUNDS,
    Noise,
    behind,
    counts_of,
    groups,
    turns_of,
    turns_of_round,
    weights_around,
)

CALM = Noise(0.07**2, 20.0)


@given(st.integers(0, 14), st.integers(0, ROUNDS - 1))
def test_each_has_one_turn_a_round_in_groups_of_about_one_size(count: int, number: int) -> None:
    found = groups(list(range(count)), number)
    assert sorted(member for group in found for member in group) == list(range(count))
    assert all(1 <= len(group) <= GROUP for group in found)
    assert not found or max(map(len, found)) - min(map(len, found)) <= 1
    assert count + len(found) == turns_of_round(count)


@pytest.mark.parametrize("count", range(2, 13))
def test_nobody_has_the_same_neighbours_in_each_round(count: int) -> None:
    before = [
        {member: group[place - 1] if place else "as written" for group in of for place, member in enumerate(group)}
        for of in (groups(list(range(count)), number) for number in range(ROUNDS))
    ]  # fmt: skip
    assert all(len({round_[member] for round_ in before}) > 1 for member in range(count))


def test_a_rotation_is_as_long_as_its_rounds() -> None:
    assert turns_of(9) == 9 + 1 + 3 * (9 + 3)
    assert turns_of(1) == 1 + 1 + 3 * 2


def test_the_nearer_turn_of_the_script_as_written_counts_for_more() -> None:
    assert weights_around(5, [4, 6]) == {4: 1.0, 6: 1.0}
    assert weights_around(5, [4, 8, 12]) == {4: 1.5, 8: 0.5}
    assert weights_around(3, [4, 8]) == {4: 1.0} and weights_around(9, [4, 8]) == {8: 1.0}
    assert weights_around(3, []) == {}


@given(st.integers(1, 9), st.integers(1, 9), st.floats(-0.1, 0.1))
def test_a_steady_drift_is_nobody_s_gain(before: int, after: int, drift: float) -> None:
    rates = {number: drift * number for number in range(before + after + 1)}
    weights = weights_around(before, [0, before + after])
    assert sum(weights.values()) == pytest.approx(2.0)
    assert sum(weight * rates[each] for each, weight in weights.items()) / 2 == pytest.approx(rates[before])


def test_who_is_behind_follows_from_the_noise() -> None:
    gains = {"best": [0.5], "near": [0.25], "far": [0.15]}
    assert behind(gains, {}, CALM) == ["far"]
    assert behind(gains, {}, Noise(0.2**2, 20.0)) == []
    assert behind({name: own * 2 for name, own in gains.items()}, {}, CALM) == ["near", "far"], "two turns say more"
    assert behind(gains, {}, Noise(0.0, 20.0)) == ["near", "far"]
    assert behind({"best": [0.5], "as fast": [0.5 - math.log(1.19)]}, {}, Noise(0.0, 20.0)) == []
    assert behind(gains, {"far": 0.4}, CALM) == [] == behind({}, {}, CALM)


def test_noise_is_what_was_expected_until_turns_say_otherwise() -> None:
    assert Noise.of([], []).variance == pytest.approx(0.07**2)
    loud = Noise.of([0.0, 0.4, -0.3, 0.5], [[0.1], [0.2, 0.9]])
    assert math.sqrt(loud.variance) > 0.3 and loud.degrees == 4 + 3 + 1
    quiet = Noise.of([0.01] * 20, [[0.1, 0.1]] * 5)
    assert math.sqrt(quiet.variance) < 0.03


def block(turn: int = 1, wait_s: float = 0.5, before: float | None = None, after: float | None = None) -> Block:
    """Ten steps of eight samples in a second."""
    return Block(Phase.WINDOW, 10, 80.0, 1.0, wait_s, ready_before=before, ready_after=after, turn=turn)


def test_a_wait_counts_where_configs_have_loaders_of_their_own() -> None:
    blocks = [block(1), block(2, 0.9, 0.0, 0.0), block(1)]
    assert counts_of(blocks, loads=True) == {1: (160.0, 2.0), 2: (80.0, 1.0)}
    assert counts_of(blocks)[2] == pytest.approx((80.0, 0.1)), "else others' turns fill the queue"


@pytest.mark.parametrize(
    ("before", "after", "made"),
    [
        (40.0, 0.0, 40.0),  # it lived on what a slow start had filled
        (0.0, 8.0, 88.0), (8.0, 0.0, 72.0),  # batches of two workers come together
        (40.0, 24.0, 64.0),  # so it would until it is empty
        (32.0, 32.0, 80.0),
        (0.0, 40.0, 88.0),  # the loop is the slower side
        (None, 8.0, 80.0),
    ],
)  # fmt: skip
def test_what_lay_ready_before_a_turn_counts_for_nobody(before: float | None, after: float | None, made: float) -> None:
    assert counts_of([block(1, 0.5, before, after)], loads=True) == {1: (made, 1.0)}


def test_what_the_start_of_an_epoch_takes_longer_is_left_out_of_the_turn_that_holds_it() -> None:
    """Half a second, where others wait for 10 ms each; without workers a first batch takes as long as any."""
    starting = Block(Phase.WINDOW, 10, 80.0, 1.0, 0.59, ready_after=0.0, starts=1, start_s=0.5, turn=1)
    assert counts_of([starting], loads=True)[1] == pytest.approx((80.0, 1 - 0.49))
    unseen = Block(Phase.WINDOW, 10, 80.0, 1.0, 0.59, starts=1, start_s=0.5, turn=1)
    assert counts_of([unseen], loads=True)[1] == (80.0, 1.0)
