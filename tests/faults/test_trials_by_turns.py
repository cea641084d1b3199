"""Trials that take turns: each may be killed at any moment, and so may their parent. Nothing stays, stopped or not.

The children are small real programs that speak the wire.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from support.forked import wait_until_gone
from support.turn_takers import note_others, nothing_is_left, pids_in, program, requests_for

from tuner.child.records import Block
from tuner.model import Outcome, OutcomeKind
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Interrupted
from tuner.runner.tree import cpu_times
from tuner.storage.records import read_records

ROOT = Path(__file__).resolve().parents[2]


def run(
    folder: Path, body: str = "pass", count: int = 2, enough: str = "count >= 12", **limits: float
) -> list[Outcome]:
    runner = ProcessRunner(child=program(folder, body, enough))
    return list(runner.run_by_turns(requests_for(folder, count, **limits), threading.Event()).outcomes)


@pytest.fixture(autouse=True)
def before() -> None:
    """Notes what runs below this process for other tests, such as a database."""
    note_others()


def spans_of(folder: Path, count: int) -> list[tuple[float, float, int, int]]:
    """When each block of each trial began and ended, its turn and its trial, in their order."""
    entries = {number: read_records(folder / f"{number:04d}" / "records.jsonl") for number in range(count)}
    return sorted(
        (entry.t - entry.record.seconds, entry.t, entry.record.turn, number)
        for number in range(count) for entry in entries[number] if isinstance(entry.record, Block)
    )  # fmt: skip


@pytest.mark.timed
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_turns_never_overlap_and_each_trial_has_as_many(tmp_path: Path, count: int) -> None:
    outcomes = run(tmp_path, count=count)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.COMPLETE] * count
    spans = spans_of(tmp_path, count)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert [turn for _, _, turn, _ in spans] == list(range(1, len(spans) + 1)), "each turn is one trial's"
    had = [[number for *_, number in spans].count(number) for number in range(count)]
    assert min(had) >= 12 and max(had) <= 14, "the last one has enough with its twelfth"
    rates = [outcome.measurement.rate for outcome in outcomes if outcome.measurement is not None]
    assert rates[1] / rates[0] == pytest.approx(2.0, rel=0.2)
    assert nothing_is_left()


@pytest.mark.timed
def test_trials_with_longer_steps_have_as_much_time_and_no_more(tmp_path: Path) -> None:
    """Turns of 0.22 s and of 0.04 s: five or six of these for each of those."""
    outcomes = run(tmp_path, "time.sleep(0.2 if me else 0.02)", enough="spent > 0.6")
    assert all(outcome.complete for outcome in outcomes)
    spans, had_s = spans_of(tmp_path, 2), [0.0, 0.0]
    longest_s = max(ended - began for began, ended, *_ in spans)
    for began, ended, _, number in spans:
        had_s[number] += ended - began
        assert abs(had_s[0] - had_s[1]) < 1.5 * longest_s, "never more than a turn ahead"
    assert had_s[1] < 0.6 + 2 * longest_s


def strangers_s() -> float:
    """Seconds in which cores were busy for others than this process and those of its children that have ended."""
    ours = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return cpu_times(os.sched_getaffinity(0))[0] - ours


@pytest.mark.timed
def test_what_others_use_meanwhile_is_not_foreign(tmp_path: Path) -> None:
    """Each of three burns a core in its turns: none of them is a stranger to the others."""
    burns, began, before_s = "while time.monotonic() < began + 0.1: pass", time.monotonic(), strangers_s()
    outcomes = run(tmp_path, burns, count=3)
    strangers = max(0.0, (strangers_s() - before_s) / (time.monotonic() - began))
    left = max(0.0, 1 - strangers / len(os.sched_getaffinity(0)))
    for outcome in outcomes:
        assert outcome.measurement is not None
        assert outcome.measurement.foreign_cpus < 0.5 + strangers
        assert 0.5 * left < outcome.measurement.cpu_s_per_sample * outcome.measurement.rate < 1.3
        assert 0.12 * 12 < outcome.seconds < 0.12 * 12 + 2.5, "its own time only"


@pytest.mark.parametrize("victim", [0, 1])
def test_one_that_dies_in_its_turn_holds_up_nobody(tmp_path: Path, victim: int) -> None:
    outcomes = run(tmp_path, f"if me == {victim} and count == 3: os.kill(os.getpid(), 9)")
    assert outcomes[victim].kind is OutcomeKind.CRASHED and outcomes[1 - victim].complete
    assert nothing_is_left()


def test_one_that_is_killed_while_it_is_held_holds_up_nobody(tmp_path: Path) -> None:
    """The other one kills it, which waits for its turn and is stopped."""
    kills = """
    if me == 0:
        remembered = os.path.join(request["folder"], "pid")
        if not count: open(remembered, "w").write(str(os.getpid()))
    elif count == 3:
        os.kill(int(open(os.path.join(os.path.dirname(request["folder"]), "0000", "pid")).read()), 9)
    """
    outcomes = run(tmp_path, textwrap.dedent(kills).strip())
    assert outcomes[0].kind is OutcomeKind.CRASHED and outcomes[1].complete
    assert nothing_is_left()


@pytest.mark.slow  # 8 s beside three others
def test_one_that_hangs_in_its_turn_is_ended_and_the_time_of_others_counts_for_nobody(tmp_path: Path) -> None:
    outcomes = run(tmp_path, "time.sleep(100 if me == 0 and count == 2 else 0.2)", no_progress_s=4.0)
    assert outcomes[0].kind is OutcomeKind.NO_PROGRESS and outcomes[1].complete
    assert nothing_is_left()


@pytest.mark.slow  # 10 s beside three others
def test_a_time_limit_is_of_a_trials_own_time(tmp_path: Path) -> None:
    """Three take 3 s each, and 9 s together."""
    outcomes = run(tmp_path, "time.sleep(0.23)", count=3, trial_timeout_s=8.0)
    assert all(outcome.complete for outcome in outcomes)


@pytest.mark.parametrize("after_s", [0.05, 0.4, 0.8])
def test_a_stop_leaves_nothing(tmp_path: Path, after_s: float) -> None:
    stop = threading.Event()
    threading.Timer(after_s, stop.set).start()
    with pytest.raises(Interrupted):
        ProcessRunner(child=program(tmp_path, enough="False")).run_by_turns(requests_for(tmp_path, 3), stop)
    assert nothing_is_left()


PARENT = """
import sys, threading
from pathlib import Path
sys.path.insert(0, {tests!r})
from support.turn_takers import program, requests_for
from tuner.runner.process import ProcessRunner
folder = Path(sys.argv[1])
ProcessRunner(child=program(folder, enough='False')).run_by_turns(requests_for(folder, 3), threading.Event())
"""


def test_a_killed_parent_leaves_nothing_not_even_stopped(tmp_path: Path) -> None:
    """Killed at any moment, between and within turns, the guards end what is held as well as what runs."""
    chance = random.Random(7)
    for attempt in range(6):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT.format(tests=str(ROOT / "tests")), str(folder)], cwd=ROOT
        )
        deadline = time.monotonic() + 30.0
        while len(list(folder.glob("0*/records.jsonl"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2 + chance.random())
        ours = pids_in(folder)
        assert len(ours) >= 4
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert not wait_until_gone(ours, 10.0)
