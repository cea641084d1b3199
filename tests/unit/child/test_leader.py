"""Whose steps count where PyTorch's optimizers step by turns."""

from __future__ import annotations

import pytest

from tuner.child.leader import Cycle


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
