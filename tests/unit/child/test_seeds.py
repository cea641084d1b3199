"""Seeds that the script sets, as it may pass them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tuner.child import seeds
from tuner.child.patches import unpatch_all


@pytest.fixture
def shift() -> Iterator[int]:
    state = random.getstate()
    seeds.install(7)
    yield 7
    unpatch_all()
    random.setstate(state)


def test_the_standard_librarys_seed_is_shifted_by_position_and_by_name(shift: int) -> None:
    wanted = random.Random(3 + shift).random()
    random.seed(3)
    assert random.random() == wanted
    random.seed(a=3, version=2)
    assert random.random() == wanted
    random.seed()
    assert random.random() == random.Random(shift).random()
