"""A trial's turns: given through a pipe, a block's length each, and what is between them counts nowhere."""

from __future__ import annotations

import os
from dataclasses import replace
from statistics import fmean
from typing import Any

import held
import pytest
from support.in_process import Log

from tuner.child.clock import StepClock
from tuner.child.records import Block, ChildRequest, Phase, Window
from tuner.child.session import Session
from tuner.child.turns import END, LEAD_IN_S, Turns

WINDOW = Window(warmup_steps=4, warmup_s=1.0, block_s=0.25, min_blocks=3, min_s=0.5, max_s=1.0, target_half_width=1e9)


def given(log: Log, text: bytes) -> Turns:
    """Turns that somebody has given already, and no more."""
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    return Turns(log, reader)


def test_turns_are_read_by_their_numbers_until_there_are_no_more() -> None:
    log = Log()
    turns = given(log, b"1\n12\n%d\n" % END)
    seen = []
    for enough in (False, False, True, True):
        assert turns.wait(enough=enough, whole=not enough) >= 0.0
        seen.append((turns.current, turns.ended))
    assert seen == [(1, False), (12, False), (END, True), (END, True)]
    assert [record["enough"] for record in log.of("turn")] == [False, False, True], "nobody is asked any more"
    assert [record["whole"] for record in log.of("turn")] == [True, True, False]


@pytest.mark.parametrize("text", [b"", b"3"])
def test_where_nobody_gives_turns_any_more_they_have_ended(text: bytes) -> None:
    turns = given(Log(), text)
    turns.wait(enough=False, whole=False)
    assert turns.ended


def test_a_stock_is_used_up_in_the_warm_up_only_where_what_makes_it_rests() -> None:
    """What computes stands still while the trial is held, and fills nothing up."""
    turns = Turns(Log(), -1)
    for ready in (900, 800, 700, 600, 500, 400, 300, 200):
        turns.measured(Block(Phase.WARMUP, 4, 128.0, 0.25, 0.0, ready_after=float(ready)))
    drains = []
    for turns.at_work in (0.0, 256.0):
        drains.append(turns.drains(3.0))
    assert drains == [False, True] and not turns.drains(9.5), "for no longer than ten seconds"


@pytest.mark.parametrize(("as_taken", "longer_s"), [(False, 0.0), (True, 0.6 * 0.5)])
def test_a_turn_is_led_in_for_what_came_back_only_where_that_is_used_up_first(
    *, as_taken: bool, longer_s: float
) -> None:
    """By the loop, in what it doesn't wait of as long as that took to be made: 32 at once, and 64 a second."""
    turns = Turns(Log(), -1)
    turns.at_work, turns.begins_as_taken = 32.0, as_taken
    for _ in range(8):
        turns.measured(Block(Phase.WARMUP, 4, 16.0, 0.25, 0.1))
    lead_ins_s = [turns.lead_in_s(stock=True, short=True) for _ in range(100)]
    assert turns.made_s == pytest.approx(0.5)
    assert sum(lead_ins_s) / 100 == pytest.approx(LEAD_IN_S + 0.5 * 0.5 + longer_s, abs=0.01), "evenly spread over it"


def test_another_process_takes_none() -> None:
    turns = given(Log(), b"1\n2\n")
    pid = os.fork()
    if not pid:
        os._exit(turns.wait(enough=False, whole=False) != 0.0 or turns.current != END)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    turns.wait(enough=False, whole=False)
    assert turns.current == 1


class Held(Turns):
    """Each turn is ten seconds in coming; the sixth never does."""

    def __init__(self, log: Log, now: list[float]) -> None:
        super().__init__(log, -1)
        self._now = now
        self.enough: list[bool] = []

    def wait(self, *, enough: bool, whole: bool) -> float:
        self.enough.append(enough)
        self.current += 1
        self.ended = self.current == 6
        self._now[0] += 10.0
        return 10.0


def test_what_a_trial_is_held_counts_nowhere() -> None:
    log, now = Log(), [0.0]
    clock = StepClock(log, WINDOW, clock=lambda: now[0])
    clock.turns = turns = Held(log, now)
    held: list[float] = []
    ready = [100.0]
    clock.on_held, clock.ready = held.append, lambda: ready[0]
    for _ in range(200):
        now[0] += 0.1
        clock.add_samples(8, 0.05)
        if clock.step():
            break
    warmup = [block for block in log.of("block") if block["phase"] == "warmup"]
    blocks = [block for block in log.of("block") if block["phase"] == "window"]
    assert all(block["turn"] == 0 for block in warmup)
    assert [block["turn"] for block in blocks] == [1, 2, 3, 4, 5], "the first turn begins with the window"
    assert all(block["seconds"] == pytest.approx(0.3) and block["samples"] == 24 for block in blocks)
    assert held == [10.0] * 6
    assert turns.enough == [False, False, False, False, True, True], "1 s of its own time, not more"


def test_what_lies_ready_is_read_again_after_a_lead_in() -> None:
    """The loader may have made a batch before it was stopped, and what was under way comes back while it is held."""
    log, now = Log(), [0.0]
    clock = StepClock(log, WINDOW, clock=lambda: now[0])
    clock.turns = Held(log, now)
    clock.ready = lambda: now[0]
    for _ in range(40):
        now[0] += 0.1
        clock.add_samples(8, 0.0)
        clock.step()
    first, second = [block for block in log.of("block") if block["phase"] == "window"][:2]
    assert second["ready_before"] == pytest.approx(first["ready_after"] + 10.0 + LEAD_IN_S)
    assert second["samples"] == first["samples"] == 24, "of the step in between nothing is counted"


def test_steps_that_are_longer_than_a_lead_in_have_none_where_nothing_is_seen_to_lie_ready() -> None:
    log, now = Log(), [0.0]
    clock = StepClock(log, WINDOW, clock=lambda: now[0])
    clock.turns = Held(log, now)
    for _ in range(20):
        now[0] += 3 * LEAD_IN_S
        clock.add_samples(8, 0.0)
        if clock.step():
            break
    blocks = [block for block in log.of("block") if block["phase"] == "window"]
    assert len(blocks) == 5 and all(block["steps"] == 1 for block in blocks)
    assert sum(block["steps"] for block in log.of("block")) == clock.total_steps - 1, "only the first is start-up"


@pytest.mark.parametrize(("step_s", "left_out"), [(0.0625, 0), (0.03125, 4)])
def test_lead_ins_do_not_take_a_third_of_short_turns(step_s: float, left_out: int) -> None:
    log, now = Log(), [0.0]
    clock = StepClock(log, replace(WINDOW, block_s=0.1), clock=lambda: now[0])
    clock.turns = Held(log, now)
    for _ in range(200):
        now[0] += step_s
        clock.add_samples(8, 0.0)
        if clock.step():
            break
    counted = sum(block["steps"] for block in log.of("block"))
    assert clock.total_steps - 1 - counted == left_out, "the first is start-up; the first turn begins with the window"


def test_validation_between_two_turns_is_part_of_neither() -> None:
    log, now = Log(), [0.0]
    clock = StepClock(log, WINDOW, clock=lambda: now[0])
    clock.turns = Held(log, now)
    for step in range(60):
        if step % 20 == 15:
            clock.validation_begins("validation")
            now[0] += 2.0
            clock.fetch_begins()
        now[0] += 0.1
        clock.add_samples(8, 0.0)
        if clock.step():
            break
    flagged = [block for block in log.of("block") if block["flagged"]]
    assert flagged and all(block["seconds"] == pytest.approx(2.0) for block in flagged)
    turns = [block["turn"] for block in log.of("block") if block["phase"] == "window" and not block["flagged"]]
    assert sorted(turns) == turns and set(turns) == {1, 2, 3, 4, 5}


def test_a_turn_is_no_longer_for_being_cut_by_validation() -> None:
    log, now = Log(), [0.0]
    clock = StepClock(log, WINDOW, clock=lambda: now[0])
    clock.turns = Held(log, now)
    for step in range(300):
        if step % 10 == 9:
            clock.validation_begins("validation")
            now[0] += 0.05
            clock.fetch_begins()
        now[0] += 0.02
        clock.add_samples(8, 0.0)
        if clock.step():
            break
    lasted: dict[int, float] = {}
    for block in log.of("block"):
        if block["phase"] == "window" and not block["flagged"]:
            lasted[block["turn"]] = lasted.get(block["turn"], 0.0) + block["seconds"]
    assert [*lasted] == [1, 2, 3, 4, 5]
    assert all(0.25 <= seconds < 0.25 + 0.03 for seconds in lasted.values()), lasted


def test_a_trials_deadline_moves_by_what_it_is_held() -> None:
    session = Session(ChildRequest(deadline_s=100.0), Log())
    ends_by, last_step = session._ends_by, session._last_step
    session.clock.on_held(7.0)
    assert (session._ends_by, session._last_step) == (ends_by + 7.0, last_step + 7.0)


@pytest.mark.parametrize("epoch_s", [0.34, 0.36, 0.38, 0.42, 0.5, 0.72])
def test_what_comes_back_as_often_as_turns_does_has_its_share_of_them(epoch_s: float) -> None:
    """Each epoch begins with a fifth of its seconds. It fell into every lead-in of a trial, and into every turn of the
    script as written beside it: a loop was told to be a third faster than itself.
    """
    log, now = Log(), [0.0]
    clock = StepClock(log, replace(WINDOW, max_s=1e9), clock=lambda: now[0])
    clock.turns, clock.ready = given(log, b"1\n" * 60), lambda: 4.0
    steps = round(epoch_s * 0.8 / 0.01)
    while not clock.complete:
        for step in range(steps):
            now[0] += 0.01 + (0.0 if step else epoch_s * 0.2)
            clock.add_samples(1, 0.0)
            clock.step()
    window = [block for block in log.of("block") if block["turn"]]
    rate = sum(block["samples"] for block in window) / sum(block["seconds"] for block in window)
    assert rate == pytest.approx(steps / epoch_s, rel=0.05)


def told(workers: int, batch_s: float, scatter: float, **first: Any) -> float:
    """To what is right: of such a loop, whose workers sleep for each batch."""
    by_itself = held.Machine(workers, batch_s, scatter, sleeps=True, seed=-1, ahead=first.get("ahead", 2))
    alone = held.rate_of(by_itself.train(120.0, by_turns=False))
    machines = [held.Machine(workers, batch_s, scatter, sleeps=True, seed=seed, **first) for seed in range(24)]
    return fmean(held.told_by_turns(machine, 5.0) for machine in machines) / alone


@pytest.mark.parametrize(("workers", "batch_s"), [(8, 0.4), (8, 0.5), (16, 1.0)])
@pytest.mark.parametrize("scatter", [0.0, held.SCATTERED])
def test_a_loop_that_waits_for_requests_is_told_its_rate_however_long_they_take(
    workers: int, batch_s: float, scatter: float
) -> None:
    """What its workers ask for comes back while it is held, and all of them ask anew at once when it goes on: nothing
    more came within a turn, and the loop lived on what had come.
    """
    assert told(workers, batch_s, scatter) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(("workers", "batch_s"), [(8, 0.4), (8, 0.5), (16, 1.0)])
def test_what_begins_another_as_the_loop_takes_one_is_told_its_rate_as_well(workers: int, batch_s: float) -> None:
    """A map of tf.data has no more calls under way than results that lie ready leave room for: what came back while it
    was held was used up first, one by one, in what was measured. 0.85 and 0.92 were told of the longest two.
    """
    assert told(workers, batch_s, 0.0, ahead=1) == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize(("workers", "batch_s", "ahead"), [(8, 0.5, 8), (4, 0.2, 8), (8, 0.4, 2)])
def test_what_lay_ready_before_the_first_step_does_not_last_through_a_window(
    workers: int, batch_s: float, ahead: int
) -> None:
    """A compilation lets queues fill, and what comes back while the loop is held keeps them full: it never waited."""
    assert told(workers, batch_s, held.SCATTERED, ahead=ahead, first_s=5.0) == pytest.approx(1, abs=0.15)
