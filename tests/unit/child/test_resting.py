"""How long those that make batches rest: they wait for something else than a core."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time

import pytest
from support.in_process import Log

from tuner.child.records import Block, Phase
from tuner.child.resting import RESTS, THREADS_REST, OwnThreads, Rest, tell_at_work
from tuner.child.turns import Turns

pytestmark = pytest.mark.timed


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize(("does", "rests"), [("while True: pass", False), ("import time; time.sleep(60)", True)])
def test_workers_rest_where_they_neither_compute_nor_wait_for_a_core(does: str, *, rests: bool) -> None:
    """Three that compute on two cores have less than a core each, and rest for none of their time."""
    workers = [subprocess.Popen([sys.executable, "-S", "-c", does]) for _ in range(3)]
    try:
        time.sleep(0.5)  # they start
        rest, pids = Rest(), [worker.pid for worker in workers]
        rest.share(pids)
        time.sleep(0.6)
        share = rest.share(pids)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert (share > RESTS) is rests, share
    assert share < 0.1 or share > 0.9, share


def test_workers_that_were_just_started_are_told_by_those_before_them() -> None:
    """Where each epoch starts some, the first look at them tells nothing: they passed for ones that rest."""
    before, now = ([subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])] for _ in range(2))
    rest = Rest()
    try:
        time.sleep(0.3)  # they start
        rest.share([worker.pid for worker in before])
        time.sleep(0.5)
        rest.share([worker.pid for worker in before])
        assert rest.share([worker.pid for worker in now]) < RESTS
    finally:
        for worker in (*before, *now):
            worker.kill()
            worker.wait()


def test_of_workers_that_nobody_can_look_at_it_is_taken_for_granted() -> None:
    assert Rest().share([]) == 1.0
    assert Rest().share([None]) == 1.0


def told(*, count: int, computing: float, rests: bool) -> float:
    """Of threads of this process, all of which rest or compute (in C, as those that decode do)."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            time.sleep(0.02) if rests else hashlib.sha256(bytes(1 << 22))

    threads, looks = [threading.Thread(target=work) for _ in range(count)], OwnThreads()
    for thread in threads:
        thread.start()
    try:
        looks.share(count, computing)
        time.sleep(1.0)
        return looks.share(count, computing)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow  # 3 s beside three others
def test_threads_rest_where_they_neither_compute_nor_wait_for_a_core() -> None:
    assert told(count=4, computing=0.0, rests=True) > 0.8
    assert told(count=4, computing=0.0, rests=False) < THREADS_REST
    assert told(count=4, computing=4.0, rests=False) > 0.8, "those that train may have run"
    assert OwnThreads().share(4, 0.0) == 1.0, "nothing is known at the first look"


def test_what_trains_has_no_part_in_what_the_loop_waits() -> None:
    """On a device the script's thread alone trains here; on the host as many as there are cores beside it."""
    turns, cores = Turns(Log(), -1), len(os.sched_getaffinity(0))
    for _ in range(8):
        turns.measured(Block(Phase.WARMUP, 4, 128.0, 0.25, 0.1))
    asked: list[float] = []

    def at_work(computing: float) -> float:
        asked.append(computing)
        return 64.0

    for asynchronous in (True, False):
        tell_at_work(turns, at_work, asynchronous=asynchronous)
        assert turns.at_work == 64.0 and not turns.begins_as_taken
    assert asked == pytest.approx([0.6, 0.6 * (1 + cores)])
    turns.current = 1
    tell_at_work(turns, lambda computing: 0.0, asynchronous=False, as_taken=True)
    assert turns.at_work == 64.0 and not turns.begins_as_taken, "turns have begun"
