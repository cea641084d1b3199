"""How sure each look at finals has to be, so that all of them together err as rarely as permitted."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from support import worlds

from tuner.analysis.schedule import CONFIDENCE, FIRST_LOOK, Schedule, opening_share
from tuner.model import Config, Phase, Trial

CANDIDATES = tuple(Trial(number, Phase.SEARCH, Config(workers=number), "", worlds.measured(1.0)) for number in (1, 2))
PERMITTED = (1 - CONFIDENCE) * opening_share(1) / len(CANDIDATES)
"""Of one opening, for each candidate."""


def spent(looks: Iterable[int], most: int = 62) -> list[float]:
    """The error that each look may spend."""
    schedule, errors = Schedule(CANDIDATES, 5, seed=0, first=5, most=most), list[float]()
    for rounds in looks:
        schedule = schedule.looked_at_again(rounds) if errors else schedule
        errors.append(1 - schedule.confidence)
    return errors


@pytest.mark.parametrize("looks", [(5, 8, 12, 18, 27, 41, 62), tuple(range(5, 63)), (5, 6, 62), (5, 61, 62), (5, 62)])
def test_all_looks_together_spend_what_one_may_however_many_they_are(looks: tuple[int, ...]) -> None:
    errors = spent(looks)
    assert min(errors) > 0 and sum(errors) == pytest.approx(PERMITTED)
    assert errors[0] == pytest.approx(FIRST_LOOK * PERMITTED), "whatever follows it"


def test_looks_that_end_early_spend_less() -> None:
    chance = random.Random(1)
    for _ in range(50):
        looks = sorted({5, *chance.sample(range(6, 62), chance.randrange(1, 30))})
        assert sum(spent(looks)) < PERMITTED


def test_a_look_at_more_new_rounds_may_spend_more() -> None:
    assert spent((5, 8))[1] < spent((5, 12))[1] < spent((5, 62))[1]


def test_one_look_spends_all_of_it_whatever_its_rounds() -> None:
    for rounds in (3, 6, 9):
        assert 1 - Schedule(CANDIDATES, rounds, seed=0, first=6, most=6).confidence == pytest.approx(PERMITTED)


def test_finals_that_end_where_they_were_looked_at_are_looked_at_as_then() -> None:
    """Eight rounds were wanted, and there was no time for one more."""
    wanted = Schedule(CANDIDATES, 5, seed=0, first=5, most=62).looked_at_again(8)
    ended = Schedule(CANDIDATES, 5, seed=0, first=5, most=62, looked=wanted.looked, ended=True)
    assert 1 - ended.confidence == pytest.approx(FIRST_LOOK * PERMITTED)
