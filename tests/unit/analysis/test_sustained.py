"""What a loop can keep up: without what lay ready, with what epochs begin with, and what validation takes beside it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.analysis.sustained import epoch_starts_s, sustained_amounts, validation_share
from tuner.child.counts import EpochUse
from tuner.child.records import Block, Phase

BLOCK = Block(Phase.WINDOW, 10, 100.0, 1.0, 0.0)


def queued(*lengths: float | None) -> list[Block]:
    """Blocks of 100 samples between which the queue is as long as given."""
    return [replace(BLOCK, ready_before=before, ready_after=after) for before, after in pairwise(lengths)]


def test_what_lay_ready_is_not_what_the_loader_made() -> None:
    assert sustained_amounts(queued(640, 620, 600, 580)) == [80, 80, 80]


def test_a_queue_that_grows_shows_that_the_loop_is_the_slower_side() -> None:
    assert sustained_amounts(queued(0, 40, 80, 80)) == [100, 100, 100]


def test_a_queue_that_comes_and_goes_changes_nothing() -> None:
    assert sustained_amounts(queued(30, 60, 10, 40, 20)) == [100] * 4
    assert sustained_amounts(queued(80, 80, 79, 80, 80, 72)) == [100] * 5, "a hiccup when the window ended"


def test_a_queue_that_is_used_up_early_counts_in_full() -> None:
    assert sum(sustained_amounts(queued(90, 30, 0, 10, 0, 10, 0, 10, 0))) == 800 - 90


def test_blocks_whose_queue_is_unknown_follow_the_others() -> None:
    """An epoch's end, and the beginning of the next one, at which the queue is empty whatever the loader can do."""
    blocks = [*queued(100, 80, 60, None, 0), replace(BLOCK, ready_before=0, ready_after=300, starts=1)]
    assert sustained_amounts(blocks) == [80, 80, 80, 80, 80]


def test_without_a_queue_samples_are_as_counted() -> None:
    assert sustained_amounts([BLOCK] * 3) == [100] * 3


def by_turns(*looks: tuple[float | None, float | None]) -> list[Block]:
    """Blocks of 100 samples, each of a turn of its own, that begin and end with so much ready; a tenth is waited."""
    return [
        replace(BLOCK, turn=turn, ready_before=before, ready_after=after, wait_s=0.1)
        for turn, (before, after) in enumerate(looks, 1)
    ]


def test_by_turns_what_others_turns_made_ready_does_not_count() -> None:
    assert sustained_amounts(by_turns((40, 20), (40, 30), (30, 30))) == [80, 90, 100]


def test_by_turns_few_queues_that_differ_by_a_batch_say_nothing_of_others() -> None:
    """Of short epochs few blocks can be compared: all others were told to be a twentieth faster for one batch."""
    short = by_turns((12, 12), (8, 16), (12, None), (12, None), (None, 12), (12, None))
    assert sustained_amounts(short) == [100, 108, 100, 100, 100, 100]


def test_by_turns_a_stock_that_is_used_up_in_each_block_is_used_up_in_the_others() -> None:
    assert sustained_amounts(by_turns((640, 620), (621, 600), (600, 581), (581, None))) == [80, 79, 81, 80]


def test_by_turns_a_little_more_wait_changes_little() -> None:
    """Two sides of one script that wait for 1.9% and 2.1% were told by different rules, and one a quarter faster."""
    looks = [(40.0, 15.0), (40.0, 16.0), (41.0, 15.0), (40.0, 14.0), (40.0, 15.0), (None, 15.0)]
    told = [
        sum(sustained_amounts([replace(block, wait_s=wait / 1000) for block in by_turns(*looks)])) / 600
        for wait in range(61)
    ]
    assert told[0] == told[5] == 1.0, "it doesn't wait"
    assert told[-1] == pytest.approx(0.75, abs=0.01), "what the loader made counts"
    assert all(before >= after > before - 0.012 for before, after in pairwise(told))


def test_by_turns_what_an_epoch_begins_with_is_no_wait_for_a_slow_loader() -> None:
    blocks = by_turns((40, 20), (40, 30), (30, 30), (30, 10))
    begins = [*blocks, replace(blocks[0], turn=5, starts=1, start_s=0.1)]
    assert sustained_amounts([replace(b, wait_s=b.start_s) for b in begins]) == [100] * 5


@given(st.lists(st.tuples(st.floats(0, 1e6), st.none() | st.floats(0, 1e6), st.integers(0, 1)), min_size=1, max_size=9))
def test_no_queue_makes_a_loop_faster_than_what_it_took(rows: list[tuple[float, float | None, int]]) -> None:
    lengths = [None, *(length for _, length, _ in rows)]
    blocks = [
        replace(BLOCK, samples=samples, ready_before=lengths[place], ready_after=length, starts=starts)
        for place, (samples, length, starts) in enumerate(rows)
    ]
    amounts = sustained_amounts(blocks)
    assert all(amount >= 0 for amount in amounts)
    grew = [b.ready_after - b.ready_before for b in blocks
            if b.ready_before is not None and b.ready_after is not None and not b.starts]  # fmt: skip
    if sum(grew) >= 0:
        assert amounts == [block.samples for block in blocks]
    elif amounts != [block.samples for block in blocks]:
        assert sum(amounts) <= sum(block.samples for block in blocks) + sum(change for change in grew if change > 0)


EPOCH = EpochUse(batches=100, samples=1000.0, workers=2, first_s=2.0, respawns=True)


def test_the_beginning_of_an_epoch_is_spread_over_it() -> None:
    """A tenth of an epoch was measured, within it: a tenth of what its beginning takes is added."""
    assert epoch_starts_s([BLOCK], EPOCH) == pytest.approx(0.2)


def test_workers_that_stay_cost_nothing_again() -> None:
    assert epoch_starts_s([BLOCK], replace(EPOCH, respawns=False)) == 0.0
    assert epoch_starts_s([BLOCK], None) == 0.0


def test_later_beginnings_say_more_than_the_first() -> None:
    assert epoch_starts_s([BLOCK], replace(EPOCH, later=3, later_s=1.0)) == pytest.approx(0.1)


def test_a_beginning_within_the_window_counts_by_the_share_of_the_epoch() -> None:
    block = replace(BLOCK, starts=1, start_s=1.0, wait_s=1.0)
    seen = replace(EPOCH, later=1, later_s=1.0)
    assert epoch_starts_s([block], seen) == pytest.approx(-0.9)
    assert epoch_starts_s([replace(block, samples=1000.0)], seen) == pytest.approx(0.0)


def test_iterations_that_the_script_breaks_off_begin_as_often_as_they_do() -> None:
    """The window's 100 samples are ten batches: five iterations of two each, of the hundred that the loader has."""
    block = replace(BLOCK, starts=5, start_s=5.0, wait_s=5.0)
    broken_off = replace(EPOCH, later=9, later_s=1.0, taken=2.0)
    assert epoch_starts_s([block], broken_off) == pytest.approx(0.0)
    assert epoch_starts_s([BLOCK], broken_off) == pytest.approx(5.0), "none lies within the window"


@pytest.mark.parametrize("respawns", [True, False])
def test_a_beginning_that_no_trial_saw_before_counts_by_the_share_of_the_epoch_too(*, respawns: bool) -> None:
    """The script as written lives on between others' turns: there an epoch began that was longer than its own trial."""
    block = replace(BLOCK, starts=1, start_s=1.0, wait_s=1.0)
    assert epoch_starts_s([block], replace(EPOCH, respawns=respawns)) == pytest.approx(-0.9)


def test_batches_that_came_at_once_after_it_are_set_off() -> None:
    """Where the loop waits for its loader all the same, the first batch of each worker comes with the first of all."""
    waiting = replace(BLOCK, wait_s=5.0)  # half a second a batch
    assert epoch_starts_s([waiting], EPOCH) == pytest.approx(0.1 * (2.0 - 2 * 0.5))
    assert epoch_starts_s([waiting], replace(EPOCH, workers=8)) == 0.0


def test_validation_is_a_share_of_whole_rounds() -> None:
    apart = replace(BLOCK, flagged=True, seconds=3.0)
    assert validation_share([BLOCK] * 4) is None
    assert validation_share([BLOCK] * 7 + [apart]) == pytest.approx(0.3)
    assert validation_share([BLOCK] * 70 + [apart] + [BLOCK] * 3 + [apart, BLOCK, BLOCK]) == pytest.approx(0.5)
    assert validation_share([apart, apart] + [BLOCK] * 6 + [apart, apart]) == pytest.approx(0.5)


def test_what_was_set_apart_once_and_comes_no_more_is_no_round() -> None:
    """A first rollout that isn't known for one yet: of a replay's trial it was told that validation takes 42%."""
    apart = replace(BLOCK, flagged=True, seconds=3.0)
    assert validation_share([BLOCK] * 3 + [apart] + [BLOCK] * 6) == pytest.approx(0.5), "the next may be about to come"
    assert validation_share([BLOCK] * 3 + [apart] + [BLOCK] * 7) is None
    assert validation_share([apart] + [BLOCK] * 2) is None, "before the training"
