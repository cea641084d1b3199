"""A budget is never overspent by what it allows, and never gives what wasn't asked for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.study.budget import FEWEST_ROUNDS, LARGEST_SHARE_UNFOUND, Budget

SECONDS = st.floats(0, 1e6)
BUDGETS = st.builds(
    Budget, st.none() | st.integers(1, 100), st.none() | st.floats(1, 1e6), SECONDS, SECONDS, st.floats(0, 0.5)
)
TRIAL_S = st.floats(0.1, 1e4)


@given(BUDGETS, SECONDS, SECONDS)
def test_what_is_left_only_shrinks(budget: Budget, after: float, later: float) -> None:
    now = budget.started + after
    left, then = budget.seconds_left(now), budget.seconds_left(now + later)
    assert (left is None) == (then is None) == (budget.seconds is None)
    if left is not None and then is not None and budget.seconds is not None:
        assert 0 <= then <= left <= budget.seconds
    assert budget.elapsed(now) == pytest.approx(budget.spent_s + after, abs=1e-6)


@given(BUDGETS, TRIAL_S, st.booleans())
def test_the_proof_keeps_its_part_from_the_start(budget: Budget, proof_s: float, found: bool) -> None:
    reserved = budget.reserved_s(proof_s, found=found)
    if budget.seconds is None:
        assert reserved == 0.0
        return
    assert budget.finals_share * budget.seconds <= reserved <= budget.seconds
    assert reserved >= min(proof_s, LARGEST_SHARE_UNFOUND * budget.seconds)
    assert found or reserved <= LARGEST_SHARE_UNFOUND * budget.seconds
    assert not found or reserved >= min(proof_s, budget.seconds), "what is found can be proven"


@given(BUDGETS, SECONDS, st.integers(0, 100), TRIAL_S, SECONDS)
def test_a_search_that_may_go_on_has_trials_and_time(
    budget: Budget, after: float, done: int, trial_s: float, reserved: float
) -> None:
    now = budget.started + after
    why = budget.search_is_over(now, done, trial_s, reserved)
    if why:
        assert (budget.trials is not None and done >= budget.trials) or budget.seconds is not None
        assert budget.search_is_over(now + 1, done + 1, trial_s, reserved), "what is over stays over"
        return
    assert budget.trials is None or done < budget.trials
    left = budget.seconds_left(now)
    assert left is None or left >= trial_s + (reserved * (1 - 1e-9) if done > 1 else 0)


@given(
    BUDGETS, SECONDS, st.lists(TRIAL_S, min_size=1, max_size=7), st.integers(0, 8),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
)  # fmt: skip
def test_finals_fit_what_is_left(
    budget: Budget, after: float, rounds_s: list[float], fewest: int, more: list[int]
) -> None:
    now = budget.started + after
    finalists = len(rounds_s)
    rounds = list(itertools.accumulate(more, initial=fewest))[:finalists]
    candidates, count = budget.finals_fit(now, rounds_s, rounds)
    left = budget.seconds_left(now)
    assert 0 <= candidates <= finalists
    assert (candidates == 0) == (count == 0)
    if left is None:
        assert (candidates, count) == ((finalists, rounds[-1]) if fewest else (0, 0))
    elif candidates:
        assert count * rounds_s[candidates - 1] <= left
        assert count == rounds[candidates - 1] or (candidates == 1 and min(FEWEST_ROUNDS, fewest) <= count < fewest)
    else:
        assert not fewest or left < min(FEWEST_ROUNDS, fewest) * rounds_s[0]


@pytest.mark.parametrize(
    ("left", "fits"), [(1000, (3, 5)), (200, (3, 5)), (199, (2, 5)), (149, (1, 5)), (99, (1, 4)), (79, (1, 3)),
                       (60, (1, 3)), (59, (0, 0)), (0, (0, 0))],
)  # fmt: skip
def test_finalists_go_before_rounds_and_fewer_than_three_are_none(left: float, fits: tuple[int, int]) -> None:
    assert Budget(None, 1000.0, started=0.0).finals_fit(1000.0 - left, [20.0, 30.0, 40.0], [5, 5, 5]) == fits


def test_a_finalist_that_takes_long_leaves_less_room() -> None:
    assert Budget(None, 150.0, started=0.0).finals_fit(0.0, [20.0, 30.0], [5, 5]) == (2, 5)
    assert Budget(None, 150.0, started=0.0).finals_fit(0.0, [20.0, 60.0], [5, 5]) == (1, 5)
    assert Budget(None, 150.0, started=0.0).finals_fit(0.0, [50.0, 60.0], [5, 5]) == (1, 3)


def test_a_finalist_that_leaves_too_few_rounds_to_tell_the_best_of_both_is_left_out() -> None:
    assert Budget(None, 209.0, started=0.0).finals_fit(0.0, [20.0, 30.0], [5, 7]) == (1, 5)
    assert Budget(None, 210.0, started=0.0).finals_fit(0.0, [20.0, 30.0], [5, 7]) == (2, 7)


def test_an_end_has_its_reason() -> None:
    budget = Budget(trials=3, seconds=100.0, started=50.0, spent_s=10.0)
    assert budget.search_is_over(50.0, 2, 5.0, 30.0) == ""
    assert budget.search_is_over(50.0, 3, 5.0, 30.0) == "all 3 trials are done"
    assert budget.search_is_over(105.0, 2, 5.0, 30.0) == ""
    short, none = (budget.search_is_over(now, 2, 5.1, 30.0) for now in (105.0, 110.0))
    assert short == "the time left for searching is too short for another trial (100 s in all)"
    assert none == "the time for searching is used up (100 s in all)"
    assert budget.search_is_over(105.0, 1, 5.1, 30.0) == "", "one config at least is tried"
