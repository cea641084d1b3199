"""Which trials may be alive at once: those for which machine and device have the memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import worlds
from support.ran import of
from support.turning import Turning

from tuner.events import Event, FinalsStarted
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Outcome, Phase, Trial, Verdict
from tuner.runner.request import ByTurns, Limits, TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.study.context import StudyContext
from tuner.study.run import run_study

BF16 = Config(precision="bf16")


@pytest.mark.parametrize(
    ("of_device", "known", "together"),
    [
        (40, Knowledge(framework="torch"), True), (46, Knowledge(framework="torch"), False),
        (None, Knowledge(framework="torch"), True), (40, Knowledge(framework="jax"), False),
        (40, Knowledge(framework="keras", backend="tensorflow"), False),
        (40, Knowledge(framework="keras", backend="tensorflow", as_written={"memory_growth": True}), True),
        (40, Knowledge(framework="keras", backend="torch"), True),
    ],
)
def test_what_a_device_has_no_memory_for_at_once_takes_no_turns(
    monkeypatch: pytest.MonkeyPatch, of_device: int | None, known: Knowledge, together: bool
) -> None:
    """A config that wasn't run yet takes as much as the script as written."""
    outcome = worlds.measured(1.0)
    assert outcome.measurement is not None
    measurement = replace(outcome.measurement, peak_host_bytes=1, peak_device_bytes=of_device)
    monkeypatch.setattr("tuner.study.context.host_memory", lambda: (100, 100))
    context: Any = SimpleNamespace(
        executor=SimpleNamespace(obstacle="", kept_bytes=0), baseline=object(),
        knowledge=known,
        trials=[Trial(0, Phase.BASELINE, BASELINE, outcome=replace(outcome, measurement=measurement))],
        plan=SimpleNamespace(limits=Limits(max_device_bytes=90)),
    )  # fmt: skip
    assert StudyContext._may_be_alive(context, [BASELINE, BF16]) is together


@pytest.mark.parametrize(("written", "asked"), [(True, False), (False, True)])
def test_one_that_takes_the_card_ahead_takes_no_turns_though_the_other_grows(written: bool, asked: bool) -> None:
    """The second to start has what the first one left: what that is decides how fast it computes."""
    context: Any = SimpleNamespace(
        executor=SimpleNamespace(obstacle="", kept_bytes=0), baseline=object(), trials=[],
        knowledge=Knowledge(framework="keras", backend="tensorflow", as_written={"memory_growth": written}),
        plan=SimpleNamespace(limits=Limits(max_device_bytes=90)),
    )  # fmt: skip
    assert not StudyContext._may_be_alive(context, [BASELINE, Config(memory_growth=asked)])
    assert StudyContext._may_be_alive(context, [BASELINE, BF16]) is written


START_S = 2.0


class Filling(Turning):
    """Trials that fill their windows, each with 60% of the card: no two are alive at once."""

    def __init__(self) -> None:
        super().__init__(lambda config: {0: 1.0, 2: 1.5}.get(int(config.get("workers", 0)), 0.9), self._seconds_of)

    @staticmethod
    def _seconds_of(request: TrialRequest) -> float:
        return START_S + request.window.warmup_s + request.window.max_s

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome = super().run(request, stop)
        assert outcome.measurement is not None
        block = outcome.measurement.blocks[0]
        longer = request.window.max_s / len(outcome.measurement.blocks) / block.seconds
        filled = replace(block, samples=longer * block.samples, seconds=longer * block.seconds)
        measurement = replace(outcome.measurement, blocks=(filled,) * 12, peak_device_bytes=60)
        return replace(outcome, measurement=measurement)

    def run_by_turns(self, requests: Sequence[TrialRequest], stop: threading.Event) -> ByTurns:
        raise AssertionError("they don't fit beside each other")


@pytest.mark.parametrize(("left_s", "rounds"), [(80.0, 0), (95.0, 3), (130.0, 4), (160.0, 5)])
def test_rounds_of_what_is_never_alive_at_once_are_foreseen_as_they_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_s: float, rounds: int
) -> None:
    """Each run is fresh, warms up for as long as any, and measures for 10 s: a round takes 30 s. It was foreseen with
    windows of 3 s: with 80 s left six rounds were begun, and one was run.
    """
    monkeypatch.setattr("tuner.study.context.host_memory", lambda: (2**40, 2**40))
    runner, events = Filling(), list[Event]()
    plan = worlds.plan(
        tmp_path, selection=("workers",), finals_rounds=5, finalists=1, trials=3, budget_s=12.0 + 2 * 15.0 + left_s,
        limits=Limits(max_device_bytes=100),
    )  # fmt: skip
    result = run_study(plan, runner, StructuredSampler(), events.append, threading.Event(), clock=lambda: runner.now)
    begun = [event.rounds for event in of(events, FinalsStarted)]
    assert begun == ([rounds] if rounds else [])
    assert sum(trial.phase is Phase.FINALS for trial in result.trials) == 2 * rounds
    assert (result.winner is not None and result.winner.verdict is Verdict.IMPROVED) is (rounds > 0)
    assert result.seconds <= 12.0 + 2 * 15.0 + left_s
