"""How long a batch is being made, by what a loop gets that waits for those that make it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.child.making import WAITS, Making
from tuner.child.records import Block, Phase

WAITED = Block(Phase.WARMUP, steps=4, samples=4 * 32, seconds=0.25, wait_s=0.1)


def known(*blocks: Block) -> Making:
    making = Making()
    for block in blocks:
        making.add(block)
    return making


def test_all_that_are_at_work_give_a_batch_each_while_one_is_made() -> None:
    assert known(WAITED, WAITED).batch_s(8 * 32) == pytest.approx(0.5)
    assert known(WAITED).batch_s(0.0) == 0.0, "nobody can tell how many are at work"


@pytest.mark.parametrize(
    "block",
    [
        replace(WAITED, wait_s=WAITS * WAITED.seconds), replace(WAITED, starts=1, start_s=0.1),
        replace(WAITED, phase=Phase.WINDOW, turn=3), replace(WAITED, flagged=True), replace(WAITED, samples=0.0),
    ],
    ids=["hardly waits", "an epoch begins", "by turns", "validation", "no samples"],
)  # fmt: skip
def test_where_the_loop_is_not_seen_to_wait_for_them_nothing_is_known(block: Block) -> None:
    assert known(block).batch_s(8 * 32) == 0.0
