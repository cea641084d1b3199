"""A budget is never overspent by what it allows, and never gives what wasn't asked for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.budget import LARGEST_FINALS_SHARE, Budget

RELAXED = settings(deadline=None)  # a shared machine stalls, and that is no fault of the code
SECONDS = st.floats(0, 1e6)
BUDGETS = st.builds(
    Budget, st.none() | st.integers(1, 100), st.none() | st.floats(1, 1e6), SECONDS, SECONDS, st.floats(0, 0.5)
)
TRIAL_S = st.floats(0.1, 1e4)


@RELAXED
@given(BUDGETS, SECONDS, SECONDS)
def test_what_is_left_only_shrinks(budget: Budget, after: float, later: float) -> None:
    now = budget.started + after
    left, then = budget.seconds_left(now), budget.seconds_left(now + later)
    assert (left is None) == (then is None) == (budget.seconds is None)
    if left is not None and then is not None and budget.seconds is not None:
        assert 0 <= then <= left <= budget.seconds
    assert budget.elapsed(now) == pytest.approx(budget.spent_s + after, abs=1e-6)


@RELAXED
@given(BUDGETS, SECONDS, TRIAL_S)
def test_the_searchs_part_leaves_the_finals_theirs(budget: Budget, after: float, trial_s: float) -> None:
    now = budget.started + after
    left, search = budget.seconds_left(now), budget.search_seconds_left(now, trial_s)
    reserved = budget.reserved_s(trial_s)
    if budget.seconds is None:
        assert (left, search, reserved) == (None, None, 0.0)
        return
    assert left is not None and search is not None
    assert 0 <= search <= left
    assert search == 0 or search + reserved == pytest.approx(left)
    with_screens = budget.search_seconds_left(now, trial_s, pairs=6)
    assert with_screens is not None and with_screens <= search, "screens take their time from the search"
    assert budget.finals_share * budget.seconds <= reserved <= LARGEST_FINALS_SHARE * budget.seconds


@RELAXED
@given(BUDGETS, SECONDS, st.integers(0, 100), TRIAL_S)
def test_a_search_that_may_go_on_has_trials_and_time(budget: Budget, after: float, done: int, trial_s: float) -> None:
    now = budget.started + after
    why = budget.search_is_over(now, done, trial_s)
    if why:
        assert (budget.trials is not None and done >= budget.trials) or budget.seconds is not None
        assert budget.search_is_over(now + 1, done + 1, trial_s), "what is over stays over"
        return
    assert budget.trials is None or done < budget.trials
    left = budget.seconds_left(now)
    assert left is None or left >= trial_s + budget.reserved_s(trial_s) * (1 - 1e-9)


@RELAXED
@given(BUDGETS, SECONDS, TRIAL_S, st.integers(0, 6), st.integers(0, 8))
def test_finals_fit_what_is_left(budget: Budget, after: float, trial_s: float, finalists: int, rounds: int) -> None:
    now = budget.started + after
    candidates, count = budget.finals_fit(now, trial_s, finalists, rounds)
    left = budget.seconds_left(now)
    assert 0 <= candidates <= finalists
    assert 0 <= count <= rounds
    assert (candidates == 0) == (count == 0)
    if left is None:
        assert (candidates, count) == ((finalists, rounds) if finalists and rounds else (0, 0))
    elif candidates:
        assert left >= 2 * trial_s
        # Three rounds of one candidate are tried in any case: fewer prove nothing.
        assert (candidates + 1) * count * trial_s <= left or (candidates, count) == (1, min(3, rounds))
    else:
        assert not finalists or not rounds or left < 2 * trial_s


@pytest.mark.parametrize(
    ("left", "fits"), [(1000, (3, 5)), (200, (3, 5)), (199, (2, 5)), (149, (1, 5)), (99, (1, 4)), (79, (1, 3)),
                       (60, (1, 3)), (20, (1, 3)), (19, (0, 0)), (0, (0, 0))],
)  # fmt: skip
def test_finalists_go_before_rounds(left: float, fits: tuple[int, int]) -> None:
    assert Budget(None, 1000.0, started=0.0).finals_fit(1000.0 - left, 10.0, 3, 5) == fits


def test_an_end_has_its_reason() -> None:
    budget = Budget(trials=3, seconds=100.0, started=50.0, spent_s=10.0)
    assert budget.search_is_over(50.0, 2, 5.0) == ""
    assert budget.search_is_over(50.0, 3, 5.0) == "all 3 trials are done"
    assert budget.search_is_over(105.0, 2, 5.0) == ""
    assert "(100 s in all)" in budget.search_is_over(105.0, 2, 5.1)
