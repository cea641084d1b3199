"""A trial that fails beside another one and not by itself: once may be chance, twice is not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support import worlds

from tuner.child.records import Window
from tuner.knowledge import Knowledge
from tuner.model import Config, Outcome, OutcomeKind, Phase, Trial
from tuner.runner.request import Runner, TrialRequest
from tuner.study.execution import TrialExecutor

WORKS = worlds.measured(500)
FAILED = Outcome(OutcomeKind.INFEASIBLE, "script-raised", "rank 1: FileExistsError: [Errno 17] File exists: 'runs'")


class InTurn(Runner):
    """Gives these outcomes, one after the other, whether trials take turns or not."""

    takes_turns = True

    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes = iter(outcomes)

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        return next(self._outcomes)


def rounds(folder: Path, ranks: int, *outcomes: Outcome) -> tuple[list[str], list[str]]:
    """What kept trials from taking turns after each round of two, and what was said."""
    notes: list[str] = []
    plan = worlds.plan(folder, ranks=ranks)
    executor = TrialExecutor(plan, InTurn(*outcomes), stop=threading.Event(), note=notes.append)
    trials = [Trial(number, Phase.FINALS, Config({"workers": number}), round=1) for number in (1, 2)]
    obstacles = [executor.obstacle]
    for _ in range(len(outcomes) // 4):
        kept = executor.execute_round(trials, Knowledge(), Window(), time_for=lambda seconds: True, together=True)
        assert all(outcome.complete for outcome in kept)
        obstacles.append(executor.obstacle)
    return obstacles, notes


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_failure_by_chance_beside_another_does_not_end_turns(tmp_path: Path, ranks: int) -> None:
    """A race between a script's own ranks, as for a folder that each makes, did so for the whole study."""
    obstacles, notes = rounds(tmp_path, ranks, WORKS, FAILED, WORKS, WORKS)
    assert obstacles == ["", ""]
    assert len(notes) == 1 and "FileExistsError" in notes[0] and "trial 2" in notes[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_second_one_does(tmp_path: Path, ranks: int) -> None:
    once = (WORKS, FAILED, WORKS, WORKS)
    (before, first, second), notes = rounds(tmp_path, ranks, *once, *once)
    assert before == first == "" and "FileExistsError" in second
    assert len(notes) == 2 and "take no turns" in notes[1]


@pytest.mark.parametrize("kind", [OutcomeKind.NO_PROGRESS, OutcomeKind.TIMED_OUT])
def test_one_that_waits_beside_another_ends_turns_at_once(tmp_path: Path, kind: OutcomeKind) -> None:
    """It waits for what the other one holds, such as a lock: each further one would take all the time it may."""
    waits = Outcome(kind, "no-progress", "nothing happened for 300 s")
    (before, after), notes = rounds(tmp_path, 1, WORKS, waits, WORKS, WORKS)
    assert before == "" and "nothing happened" in after
    assert len(notes) == 1 and "take no turns" in notes[0]
