"""A candidate that the first rounds of the finals show to be behind gets no more of them, before any look."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support import worlds

from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import Event, Noted
from tuner.model import Config, Outcome, Phase, Verdict
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study

UNSCREENED = AccuracyLimits(max_loss_increase=None)


def finals(folder: Path, second: float, noise: float, *, rounds: int) -> tuple[StudyResult, list[Event]]:
    """A study of two configs, the first of which is twice as fast as the script as written, with finals of both."""
    chance = random.Random(7)

    def outcome(config: Config) -> Outcome:
        speed = {"bf16": 2.0, "fp16": second}.get(str(config.get("precision")), 1.0)
        return worlds.measured(100.0 * speed * (1.0 + chance.uniform(-noise, noise)))

    return study(folder, outcome, rounds)


def study(folder: Path, outcome: Callable[[Config], Outcome], rounds: int) -> tuple[StudyResult, list[Event]]:
    plan = worlds.plan(
        folder, trials=3, finals_rounds=rounds, most_rounds=rounds, selection=("precision",), accuracy=UNSCREENED
    )
    events: list[Event] = []
    result = run_study(plan, ReplayRunner(outcome), StructuredSampler(), events.append, threading.Event())
    return result, events


def scripted(bf16: Sequence[float], fp16: Sequence[float]) -> Callable[[Config], Outcome]:
    """How fast each of both is from run to run: in its trial, then in each round."""
    speeds = {"bf16": iter(bf16), "fp16": iter(fp16)}

    def outcome(config: Config) -> Outcome:
        of = speeds.get(str(config.get("precision")))
        return worlds.measured(100.0 * (next(of) if of is not None else 1.0))

    return outcome


def runs(result: StudyResult) -> dict[str, int]:
    """How many runs each config has had in the finals."""
    found = [trial.config for trial in result.trials if trial.phase is Phase.FINALS]
    return {str(config.get("precision", "as written")): found.count(config) for config in found}


def test_what_is_behind_after_three_rounds_has_no_more_of_them(tmp_path: Path) -> None:
    result, events = finals(tmp_path, 1.5, 0.03, rounds=6)
    assert runs(result) == {"as written": 6, "bf16": 6, "fp16": 3}
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED and result.winner.runs == 6
    notes = [event.text for event in events if isinstance(event, Noted)]
    assert notes.count("the finals go on without precision=fp16, unlikely to be the fastest") == 1


@pytest.mark.parametrize(("second", "noise"), [(1.98, 0.03), (1.5, 0.5)])
def test_what_may_be_the_fastest_stays(tmp_path: Path, second: float, noise: float) -> None:
    """Nearly as fast, or as fast as anything by what the rounds say."""
    result, _ = finals(tmp_path, second, noise, rounds=4)
    assert runs(result) == {"as written": 4, "bf16": 4, "fp16": 4}


def test_who_would_be_judged_stays_though_another_one_leads(tmp_path: Path) -> None:
    """That one is faster by rounds that differ much: what is known of the other would be lost with it."""
    outcome = scripted(bf16=[2.0, 1.2, 2.0, 4.0, 2.0], fp16=[1.5, 1.49, 1.5, 1.51, 1.5])
    result, _ = study(tmp_path, outcome, 4)
    assert runs(result) == {"as written": 4, "bf16": 4, "fp16": 4}
    assert result.winner is not None and result.winner.config == Config(precision="fp16")


def test_bad_luck_has_few_chances(tmp_path: Path) -> None:
    """By four rounds it would be behind, by the five after which they are held against each other it isn't."""
    outcome = scripted(bf16=[2.0] * 7, fp16=[1.95, 1.95, 1.95, 2.0, 1.95, 2.1, 2.0])
    result, _ = study(tmp_path, outcome, 6)
    assert runs(result) == {"as written": 6, "bf16": 6, "fp16": 6}


def test_it_is_not_asked_of_a_resumed_study_again(tmp_path: Path) -> None:
    first, _ = finals(tmp_path, 1.5, 0.03, rounds=6)
    again, events = finals(tmp_path, 1.5, 0.03, rounds=6)
    assert again.trials == first.trials and again.winner == first.winner
    assert not any(isinstance(event, Noted) and "go on without" in event.text for event in events)
