"""What autotune's own instruments take of a call of Keras' training function is told where it shows."""

from __future__ import annotations

import re

import pytest

from tuner.child.keras.calls import LED_IN, LOOKED_AT, CallCost


def said(
    call_s: float, own_s: float, *, within_s: float = 0.0, validates_every: int = 0, slow_every: int = 0
) -> list[str]:
    """Of calls that begin so far apart, each of which the instruments take so much of, before and behind it."""
    lines, now = list[str](), 0.0
    cost = CallCost(lines.append)
    for call in range(1, 2 * (LED_IN + LOOKED_AT)):
        cost.within(within_s)
        holds_s = 0.5 if slow_every and call % slow_every == 0 else 0.0
        cost.called(now, now + own_s / 2, now + call_s - own_s / 2 - within_s, now + call_s + holds_s)
        now += call_s + holds_s
        if validates_every and call % validates_every == 0:
            now += 10.0
            cost.interrupted()
    return lines


def test_a_share_that_shows_is_told_once() -> None:
    (line,) = said(0.0004, 0.00004)
    assert re.search(r"take about 1\d% of a step", line)


@pytest.mark.parametrize(("call_s", "own_s"), [(0.0004, 0.000004), (0.02, 0.002)])
def test_a_small_one_and_that_of_long_calls_is_not(call_s: float, own_s: float) -> None:
    assert said(call_s, own_s) == []


def test_what_is_taken_within_a_call_counts_as_well() -> None:
    assert len(said(0.0004, 0.000008, within_s=0.00002)) == 1


def test_others_turns_and_validations_are_no_part_of_it() -> None:
    assert said(0.0004, 0.000004, slow_every=100, validates_every=40) == []
    assert len(said(0.0004, 0.00004, slow_every=100, validates_every=40)) == 1
