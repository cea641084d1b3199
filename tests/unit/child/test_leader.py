"""Whose steps count where optimizers, functions or updates step by turns."""

from __future__ import annotations

import pytest

from tuner.child.leader import Cycle, Turns


class Optimizer:
    """Can be held weakly, as those of PyTorch can."""


def _counted(names: str, batches: str = "") -> int:
    """How many steps count of optimizers that step in this order; ``batches``: the batch of each step."""
    optimizers = {name: Optimizer() for name in names}
    cycle = Cycle()
    numbers = [int(batch) for batch in batches] or [0] * len(names)
    return sum(cycle.leads(optimizers[name], batch) for name, batch in zip(names, numbers, strict=True))


@pytest.mark.parametrize(
    ("names", "counted"),
    [
        ("aaaa", 4),
        ("dgdgdg", 3),
        ("dddddgdddddg", 10),
        ("gdddddgddddd", 10),
        ("abcdefghabcdefgh", 2),
        ("aaaabbbb", 7),
    ],
)
def test_of_those_that_take_turns_the_first_ones_steps_count(names: str, counted: int) -> None:
    assert _counted(names) == counted


def test_another_batch_is_another_step() -> None:
    assert _counted("dgdgdg", "112233") == 3
    assert _counted("dddgdddg", "12334566") == 6
    assert _counted("aabbcc", "123456") == 6
    assert _counted("abcabc", "123456") == 6


def test_one_that_is_made_for_each_step_leaves_none_uncounted() -> None:
    cycle = Cycle()
    assert sum(cycle.leads(Optimizer(), 0) for _ in range(100)) == 100


@pytest.mark.parametrize(
    ("names", "counted"),
    [
        ("aaaa", 4),
        ("dgdgdg", 3),
        ("dddddgdddddg", 10),
        ("abcdefghabcdefgh", 2),
        ("aaaabbbb", 8),
        ("pppvvvpppvvv", 12),
        ("aabbccdd", 8),
    ],
)
@pytest.mark.parametrize("weak", [True, False])
def test_of_several_in_turn_one_that_goes_on_counts_from_its_first_step(names: str, counted: int, weak: bool) -> None:
    keys = {name: Optimizer() if weak else name for name in names}
    turns = Turns()
    assert sum(turns.counted(keys[name], 1, 0) or 0 for name in names) == counted


def test_in_turns_another_batch_is_another_step() -> None:
    def counted(names: str, batches: str) -> int:
        turns = Turns()
        return sum(turns.counted(name, 1, int(batch)) or 0 for name, batch in zip(names, batches, strict=True))

    assert counted("dgdgdg", "112233") == 3
    assert counted("aabbcc", "123456") == 6
    assert counted("abcabc", "123456") == 6


def test_steps_of_a_call_that_does_not_count_are_owed() -> None:
    turns = Turns()
    assert turns.counted("a", 2, 0) == 2
    assert turns.counted("b", 3, 0) is None
    assert turns.counted("b", 3, 0) == 6
    assert turns.counted("b", 0, 0) == 0
