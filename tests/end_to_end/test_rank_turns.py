"""Several ranks by turns with those of another trial: all of a trial's train, or none, and each step counts once."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support.forked import was_forked
from support.rank_scripts import ddp, joining, request_of, runner_of_ranks

from tuner.analysis.ranks import united
from tuner.child.records import Block, Phase
from tuner.child.unison import RANKS_APART
from tuner.child.wire import Entry
from tuner.model import Outcome
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits
from tuner.storage.folder import RECORDS
from tuner.storage.records import read_records

STEP = "time.sleep(0.02 if rank else 0.01)\nprint(float(sum(p.detach().sum() for p in model.parameters())).hex())"


@pytest.fixture(scope="module")
def by_turns(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Outcome, ...], list[list[Entry]], list[Path]]:
    """Two trials of the script as written, of which rank 1 takes twice as long for itself; what they sent.

    As in the finals of a study the ranks of each are forked off a server of its own.
    """
    for _ in range(3):
        one = request_of(tmp_path_factory.mktemp("by-turns"), ddp(step=STEP), fresh=True)
        requests = [one, replace(one, folder=one.folder.with_name("second"))]
        with runner_of_ranks() as runner:
            found = runner.run_by_turns(requests, threading.Event())
        if "port-taken" not in {outcome.reason for outcome in found.outcomes}:
            break  # by another test: a study runs such a trial again
    assert not found.obstacle and all(was_forked(request) for request in requests), runner.why_no_forks
    return found.outcomes, [read_records(request.folder / RECORDS) for request in requests], [
        request.folder for request in requests
    ]  # fmt: skip


def _window(entries: list[Entry]) -> list[Entry]:
    return [e for e in entries if isinstance(e.record, Block) and e.record.phase is Phase.WINDOW]


@pytest.mark.slow  # 17 s beside three others
def test_two_trials_of_two_ranks_take_turns(by_turns: tuple[tuple[Outcome, ...], list[list[Entry]], object]) -> None:
    outcomes, sent, _ = by_turns
    assert all(outcome.complete for outcome in outcomes), [outcome.detail for outcome in outcomes]
    blocks = [(e.t - e.record.seconds, e.t) for of in sent for e in _window(of) if isinstance(e.record, Block)]
    of_trial = [[(e.t - e.record.seconds, e.t) for e in _window(of) if isinstance(e.record, Block)] for of in sent]
    assert len(blocks) > 8
    both = sum(max(0.0, min(one[1], other[1]) - max(one[0], other[0])) for one, other in itertools.product(*of_trial))
    assert both < 0.1 * sum(end - begin for begin, end in blocks), "one trains while the other is held"


def test_all_ranks_end_a_turn_after_the_same_step(
    by_turns: tuple[object, list[list[Entry]], object],
) -> None:
    for entries in by_turns[1]:
        turns = [
            {(e.record.turn, e.record.at) for e in _window(entries) if isinstance(e.record, Block) and e.rank == rank}
            for rank in (0, 1)
        ]
        assert turns[0] == turns[1] and len(turns[0]) > 2
        joined = _window(united(entries))
        assert {(e.record.turn, e.record.at) for e in joined if isinstance(e.record, Block)} == turns[0]


def test_the_rate_is_that_of_the_slowest_rank(by_turns: tuple[tuple[Outcome, ...], object, object]) -> None:
    for outcome in by_turns[0]:
        assert outcome.measurement is not None
        assert outcome.measurement.steps_per_s < 50, "rank 1 sleeps for 20 ms in each"
        assert outcome.measurement.turns > 2


def test_they_train_as_they_do_alone(by_turns: tuple[object, object, list[Path]]) -> None:
    """Bit for bit in each rank: nothing is lost between two turns."""
    first, second = ((folder / "log.txt").read_text().split() for folder in by_turns[2])
    both = min(len(first), len(second))
    assert both > 15 and first[:both] == second[:both]
    other = (by_turns[2][0] / "log-1.txt").read_text().split()
    assert other[: len(first)] == first[: len(other)]


@pytest.mark.slow  # unit/child/test_unison.py, unit/runner/test_exchange.py
def test_ranks_that_do_not_take_the_same_steps_take_no_turns(tmp_path: Path) -> None:
    """At a cut the one would wait for the other, which waits for it in their exchange: nobody's fault."""
    request = request_of(tmp_path, joining(), limits=Limits(trial_timeout_s=30))
    stop, runner = threading.Event(), ProcessRunner()
    try:
        (by_turns,) = runner.run_by_turns([request], stop).outcomes
    finally:
        runner.close()
    assert by_turns.reason == RANKS_APART, by_turns.detail


@pytest.mark.slow  # those of a round go on alone: unit/study/test_execution.py
def test_ranks_that_do_not_take_the_same_steps_are_measured_alone(tmp_path: Path) -> None:
    request = request_of(tmp_path, joining(), limits=Limits(trial_timeout_s=30))
    runner = ProcessRunner()
    try:
        alone = runner.run(request, threading.Event())
    finally:
        runner.close()
    assert alone.complete, alone.detail
