"""The memory that ranks share: whatever is decided on lies ahead of all of them, and each comes to all of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.shared_by import shared_by

from tuner.child.unison import CUTS, Decision, Unison, bytes_for, steps_of


@pytest.fixture
def shared() -> Iterator[int]:
    with shared_by(3) as descriptor:
        yield descriptor


def test_a_cut_lies_ahead_of_the_foremost_rank(shared: int) -> None:
    leader, other = Unison(shared, 0, 3), Unison(shared, 1, 3)
    other.stepped(7, 7.0, 0)
    leader.stepped(4, 4.0, 0)
    leader.cut_after(2)
    cut = []
    for step in range(5, 12):
        leader.stepped(step, 1.0, 0)
        cut += [(0, step)] if leader.is_cut else []
    for step in range(8, 12):
        other.stepped(step, 1.0, 0)
        cut += [(1, step)] if other.is_cut else []
    assert cut == [(0, 9), (1, 9)]


def test_a_rank_that_lags_comes_to_every_cut(shared: int) -> None:
    leader, other = Unison(shared, 0, 3), Unison(shared, 1, 3)
    for step in range(1, 20):
        leader.stepped(step, 1.0, 0)
        leader.cut_after(1)
    cuts = []
    for step in range(1, 20):
        other.stepped(step, 1.0, 0)
        cuts += [step] if other.is_cut else []
    assert cuts == list(range(2, 20))


def test_a_rank_that_lags_too_far_comes_to_the_newest_cuts(shared: int) -> None:
    leader, other = Unison(shared, 0, 3), Unison(shared, 1, 3)
    for step in range(1, 3 * CUTS):
        leader.stepped(step, 1.0, 0)
        leader.cut_after(1)
    cuts = 0
    for step in range(1, 3 * CUTS):
        other.stepped(step, 1.0, 0)
        cuts += other.is_cut
    assert cuts == CUTS - 1  # the last one lies ahead of all


def test_all_end_with_the_same_step(shared: int) -> None:
    ranks = [Unison(shared, rank, 3) for rank in range(3)]
    for rank, steps in zip(ranks, (5, 6, 4), strict=True):
        rank.stepped(steps, float(steps), 0)
    ranks[0].end()
    ends = []
    for rank, steps in zip(ranks, (5, 6, 4), strict=True):
        step = steps
        while not rank.ends:
            step += 1
            rank.stepped(step, float(step), 0)
        ends.append(step)
    assert ends == [7, 7, 7]
    assert steps_of(os.pread(shared, bytes_for(3), 0), 3) == [7, 7, 7]


def test_what_one_does_all_know(shared: int) -> None:
    leader, other = Unison(shared, 0, 3), Unison(shared, 2, 3)
    leader.stepped(1, 16.0, 1)
    other.stepped(1, 8.5, 3)
    assert (leader.activity, leader.progress) == (4, 24.5)
    leader.in_window = True
    assert other.in_window


def test_at_a_cut_the_others_wait_for_what_is_decided(shared: int) -> None:
    """And rank 0 ends a turn once all of them have come, whatever they overtook."""
    leader, *others = (Unison(shared, rank, 3) for rank in range(3))
    leader.cut_after(2)
    leader.stepped(2, 2.0, 0)
    decision = Decision(turn=7, ended=False, leads_in=True)
    with ThreadPoolExecutor(3) as at_once:
        gathered = at_once.submit(leader.gather)
        others[0].stepped(2, 2.0, 0)
        others[1].stepped(3, 3.0, 0)
        first = at_once.submit(others[0].follow)
        assert others[1].is_cut and not gathered.done()
        second = at_once.submit(others[1].follow)
        gathered.result(20)
        assert not first.done() and not second.done()
        leader.decide(decision)
        assert (first.result(20), second.result(20)) == (decision, decision)
    assert others[0].follow() == decision, "a decision that is known isn't waited for"


def test_ranks_that_do_not_come_to_a_cut_are_not_waited_for_without_end(shared: int) -> None:
    """Such as one with fewer batches, which waits elsewhere. Either side of them may be the one that waits at a cut."""
    leader, other = Unison(shared, 0, 3), Unison(shared, 1, 3)
    leader.patience_s = other.patience_s = 0.05
    leader.cut_after(2)
    for rank in (leader, other):
        rank.stepped(2, 2.0, 0)
    leader.gather()
    assert leader.apart and not other.apart
    other = Unison(shared, 1, 3)
    other.patience_s = 0.05
    leader.cut_after(2)
    other.stepped(4, 4.0, 0)
    assert not other.follow().ended
    assert other.apart


def test_a_rank_waits_for_as_long_as_the_parent_gives_turns_to_others(shared: int) -> None:
    leader, others = Unison(shared, 0, 3), [Unison(shared, rank, 3) for rank in (1, 2)]
    leader.cut_after(2)
    for rank in (leader, *others):
        rank.stepped(2, 2.0, 0)
        rank.patience_s = 0.1
    with ThreadPoolExecutor(3) as at_once:
        followed = [at_once.submit(other.follow) for other in others]
        leader.gather()
        time.sleep(0.3)
        leader.decide(Decision(turn=3, ended=False, leads_in=False))
        assert [each.result(20).turn for each in followed] == [3, 3]
    assert not any(rank.apart for rank in (leader, *others))


def test_nobody_waits_for_a_rank_that_is_through(shared: int) -> None:
    leader, *others = (Unison(shared, rank, 3) for rank in range(3))
    leader.cut_after(2)
    for rank in (leader, others[0]):
        rank.stepped(2, 2.0, 0)
    for other in others:
        other.leave()
    leader.gather()
    leader.leave()
    assert others[0].follow().ended
    assert not leader.apart and not others[0].apart


def test_who_waits_for_an_answer_that_never_comes_is_seen_to_be_idle(
    shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that hangs while it switches: a stall is told from work by the time of a core that is used."""
    leader, other = Unison(shared, 0, 3), Unison(shared, 1, 3)
    sleep, slept = time.sleep, list[float]()

    def note(seconds: float) -> None:
        slept.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", note)
    leader.patience_s = 0.1
    leader.ask(1, 0)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(leader.answers)
        try:
            until = time.monotonic() + 30
            while sum(seconds >= 0.01 for seconds in slept) < 5:
                assert time.monotonic() < until, f"it slept for {slept[-5:]} s at last"
                sleep(0.05)
            assert not waiting.done() and not leader.apart, "it is for the parent to end them"
        finally:  # the pool waits for it
            for rank in (other, Unison(shared, 2, 3)):
                rank.leave()
        assert waiting.result(timeout=5.0) == {}
