"""Finals whose rounds others disturbed: they have judged nobody, and go on where there is more time."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.clocked import Clocked
from support.life_of_finals import UNSCREENED, finals
from support.ran import of

from tuner.events import Event, Noted
from tuner.export import PROFILE
from tuner.model import Config, Outcome, Phase, Verdict
from tuner.result import StudyResult
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study

BF16 = Config(precision="bf16")
TOO_FEW = "too few rounds were calm to prove anything, and no time is left for more"


class Shared(Clocked):
    """bf16 is twice as fast. Others take most of the cores in its first runs in the finals, so many of them. Runs take
    ten seconds, and those of the finals ``finals_s``.
    """

    def __init__(self, busy_runs: int, finals_s: float) -> None:
        super().__init__(self._outcome)
        self._left, self._finals_s = busy_runs, finals_s

    def _outcome(self, config: Config) -> Outcome:
        outcome = worlds.measured(200.0 if config == BF16 else 100.0)
        if not self.requests[-1].fresh or len(self.requests) == 1:
            return outcome
        outcome, is_busy = replace(outcome, seconds=self._finals_s), config == BF16 and self._left > 0
        assert outcome.measurement is not None
        self._left -= is_busy
        return replace(outcome, measurement=replace(outcome.measurement, foreign_cpus=6.0 if is_busy else 0.0))


def studied(
    folder: Path, budget_s: float, busy_runs: int, finals_s: float = 10.0
) -> tuple[StudyResult, list[str]]:
    runner, events = Shared(busy_runs, finals_s), list[Event]()
    plan = worlds.plan(
        folder, trials=3, budget_s=budget_s, accuracy=UNSCREENED, selection=("precision",), finalists=1, finals_rounds=5
    )
    result = run_study(plan, runner, StructuredSampler(), events.append, threading.Event(), clock=runner.clock)
    return result, [note.text for note in of(events, Noted)]


def rounds(result: StudyResult) -> set[int | None]:
    return {trial.round for trial in result.trials if trial.phase is Phase.FINALS}


@pytest.mark.parametrize("budget_s", [105.0, 130.0, 230.0])
def test_finals_of_which_no_round_was_calm_go_on_where_there_is_more_time(tmp_path: Path, budget_s: float) -> None:
    """They had ended for good: "no proof: other processes kept the machine busy in 5 of 5 rounds", also where the same
    command was given with more time on a machine that was calm again.
    """
    first, notes = studied(tmp_path, budget_s, busy_runs=100)
    assert first.winner is not None and first.winner.verdict is Verdict.KEEP_BASELINE
    assert "other processes kept the machine busy" in first.winner.label and len(rounds(first)) >= 3
    assert TOO_FEW in notes and first.seconds <= budget_s
    again, notes = studied(tmp_path, 1000.0, busy_runs=0)
    assert again.winner is not None and (again.winner.verdict, again.winner.config) == (Verdict.IMPROVED, BF16)
    assert TOO_FEW not in notes and rounds(first) < rounds(again)
    assert finals(tmp_path).get("earlier") == [], "they are the same finals, which spend no other share of the error"
    [profile] = json.loads(PROFILE.serialize(again, None) or b"")["profiles"]
    assert profile["config"] == {"precision": "bf16"}


def test_rounds_are_added_until_enough_of_them_were_calm(tmp_path: Path) -> None:
    """Three rounds were foreseen to fit, and there was time for nine: all of the five that there might be were
    disturbed, and the study ended.
    """
    result, notes = studied(tmp_path, 105.0, busy_runs=6, finals_s=4.0)
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    assert result.winner.runs >= 3 and TOO_FEW not in notes and result.seconds <= 105.0


@pytest.mark.parametrize("finals_s", [25.0, 18.0])
def test_disturbed_finals_that_had_no_time_for_their_first_look_go_on_to_it(tmp_path: Path, finals_s: float) -> None:
    """After three or four of five rounds: the next look had nothing of the permitted error, and the study ended with
    an error of its own, each time that the command was given; or it had next to nothing.
    """
    first, notes = studied(tmp_path, 200.0, busy_runs=100, finals_s=finals_s)
    stored = finals(tmp_path)
    assert TOO_FEW in notes and not first.improved
    assert (stored["first"], stored["most"], stored["rounds"]) == (5, 27, len(rounds(first))) and len(rounds(first)) < 5
    again, _ = studied(tmp_path, 700.0, busy_runs=0)
    assert again.improved and again.winner is not None and again.winner.runs >= 3
    stored = finals(tmp_path)
    looked = stored["looked"]
    assert isinstance(looked, list) and not [each for each in looked if each < 5], "nothing could be proven by then"


def test_finals_that_judged_somebody_have_ended(tmp_path: Path) -> None:
    """Their look has spent what it may spend of the permitted error."""
    first, _ = studied(tmp_path, 130.0, busy_runs=1)
    again, _ = studied(tmp_path, 1000.0, busy_runs=0)
    assert first.winner is not None and again.winner == first.winner and rounds(again) == rounds(first)
