"""How long a batch is being made, by what a loop gets that waits for those that make it."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


@pytest.mark.parametrize(
    ("ready", "lasts_s"),
    [
        ((900, 800, 700, 600, 500, 400, 300, 200), 500 * 1.0 / 400),
        ((900, 900, 900, 900, 500, 400, 300, 200), 500 * 1.0 / 400),
        ((500, 100, 300, 200, 400, 450, 100, 200), math.inf),
        ((100, 200, 300, 400, 500, 600, 700, 800), math.inf),
        ((64, 0, 32, 0, 32, 0, 64, 0), math.inf),
        ((900, 800, 700), math.inf),
    ],
    ids=["falls", "has begun to fall", "comes and goes", "grows", "nothing is left", "too few"],
)  # fmt: skip
def test_what_lies_ready_is_used_up_where_the_most_of_it_gets_less(ready: Sequence[int], lasts_s: float) -> None:
    blocks = [replace(WAITED, wait_s=0.0, ready_after=float(samples)) for samples in ready]
    assert known(*blocks).stock_lasts_s() == pytest.approx(lasts_s)
    assert known(*blocks, replace(WAITED, ready_after=None)).stock_lasts_s() == math.inf, "nobody sees it"


def test_of_a_loop_that_has_used_it_up_the_newest_blocks_tell() -> None:
    """Those before lived on it."""
    before = replace(WAITED, samples=9999.0, wait_s=0.0)
    assert known(*[before] * 40, *[WAITED] * 8).batch_s(8 * 32) == pytest.approx(0.5)
