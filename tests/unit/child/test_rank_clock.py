"""The clock of rank 0 of several, on a clock of its own: what it decides is about all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.shared_by import shared_by

from tuner.child.rank_clock import RankClock, RankTurns
from tuner.child.recorder import Recorder
from tuner.child.records import Block, Phase, Record, Window
from tuner.child.turns import DRAIN_S, LEAD_IN_S, UNEVEN, Turns
from tuner.child.unison import Unison

STEP_S, BATCH = 0.01, 10.0
UNENDING = Window(warmup_steps=2, warmup_s=0.0, block_s=0.05, min_blocks=200, min_s=100.0, max_s=100.0)


class _Ranks(Recorder):
    """Ranks of one process that step by turns, each on batches of its own."""

    def __init__(self, window: Window, shared: int, size: int = 2) -> None:
        super().__init__(None)
        self.now = 0.0
        self.sent: list[Record] = []
        self.clocks = [RankClock(self, window, Unison(shared, rank, size), lambda: self.now) for rank in range(size)]

    def emit(self, record: Record) -> None:
        self.sent.append(record)

    def train(self, calls: int, *, steps: int = 1) -> bool:
        """So many calls, each of which tells of these steps; whether rank 0 says that it is enough."""
        for _ in range(calls):
            self.now += steps * STEP_S
            for clock in self.clocks[::-1]:
                clock.add_samples(steps * BATCH, 0.0)
                ended = clock.step(steps)
            if ended:
                return True
        return False


@pytest.fixture
def shared() -> Iterator[int]:
    with shared_by(2) as descriptor:
        yield descriptor


@pytest.mark.parametrize(("below", "ends"), [(0.9, False), (1.1, True)])
def test_a_rate_is_hopeless_by_the_samples_of_all_ranks(shared: int, below: float, ends: bool) -> None:
    """Each trains on 1,000 samples a second: the two on twice as many, which the bound is held against."""
    window = Window(**{**vars(UNENDING), "hopeless_below": below * 2 * BATCH / STEP_S})
    assert _Ranks(window, shared).train(400) is ends


def test_steps_that_are_told_of_ten_at_a_time_end_blocks(shared: int) -> None:
    """A cut may lie within them: both ranks end their block with what holds it."""
    ranks = _Ranks(UNENDING, shared)
    ranks.train(40, steps=10)
    ends = [record.at for record in ranks.sent if isinstance(record, Block)]
    assert len(ends) > 20
    assert all(ends.count(at) == 2 for at in ends)


def test_turns_of_ranks_are_of_uneven_length_like_those_of_one_process() -> None:
    """Else epochs that last as long as turns began in each of them, or in none."""
    reader, writer = os.pipe()
    os.write(writer, b"1\n" * 60)
    os.close(writer)
    with shared_by(1) as shared:
        ranks = _Ranks(replace(UNENDING, block_s=0.4), shared, size=1)
        clock = ranks.clocks[0]
        clock.turns = RankTurns(Turns(ranks, reader), clock.unison)
        assert ranks.train(4000)
    lasted = [record.seconds for record in ranks.sent if isinstance(record, Block) and record.turn]
    assert len(lasted) >= 60
    assert min(lasted) < 0.4 * (1 - UNEVEN / 2) and max(lasted) > 0.4 * (1 + UNEVEN / 2)
    longest, shortest = 0.4 * (1 + UNEVEN) + STEP_S, 0.4 * (1 - UNEVEN) - STEP_S
    assert all(shortest <= seconds <= longest for seconds in lasted[1:]), "but the first, which still grows"


def test_turns_of_ranks_are_as_long_as_what_they_wait_for_takes() -> None:
    """As those of one process: see ``Turns.lead_in_s``."""
    waited = Block(Phase.WARMUP, steps=4, samples=16, seconds=0.25, wait_s=0.2)
    reader, writer = os.pipe()
    os.close(writer)
    with shared_by(1) as shared:
        ranks = _Ranks(UNENDING, shared, size=1)
        given = Turns(ranks, reader, block_s=0.25)
        turns = RankTurns(given, ranks.clocks[0].unison)
        turns.at_work = 48.0
        for ready in (400.0, 400.0, 200.0, 200.0):
            turns.measured(replace(waited, ready_after=ready))
    assert turns.drains(0.0) and not turns.drains(DRAIN_S)
    assert given.longer == pytest.approx(3.0), "48 samples take 0.75 s"
    lead_ins = [turns.lead_in_s(stock=True, short=True) for _ in range(50)]
    assert min(lead_ins) < LEAD_IN_S + 0.05 and max(lead_ins) > LEAD_IN_S + 0.7


@pytest.mark.parametrize("by_fetch", [True, False])
def test_a_step_behind_a_validation_is_one_that_the_rank_takes_alone_too(shared: int, *, by_fetch: bool) -> None:
    """Its time from the resumption on: else one that validates would seem to come sooner than those that don't."""
    ranks = _Ranks(UNENDING, shared)
    ranks.train(20)
    clock = ranks.clocks[0]
    clock.flush()
    clock.validation_begins()
    ranks.now += 5.0
    (clock.fetch_begins if by_fetch else clock.training_resumes)()
    ranks.now += 0.25
    clock.meets_others()
    clock.step()
    clock.flush()
    last = ranks.sent[-1]
    assert isinstance(last, Block) and not last.flagged and last.alone_s == 0.25
