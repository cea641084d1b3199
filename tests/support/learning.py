"""Whole studies on a made-up machine, in whose screens each config learns as a test says."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import worlds
from support.clocked import Clocked
from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import Event
from tuner.model import Config, Outcome, Phase
from tuner.result import StudyResult
from tuner.runner.request import TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study

COMPILED = Config(compile="default")
GAINS = {"bf16": 2.0, "fp16": 0.9, "default": 1.3, "max": 1.1}
"""How many times as fast each value is, whatever is beside it: bf16 twice, the compiler by a third."""
AS_WRITTEN = [2.0 * 0.9**step for step in range(60)]
Losses = Callable[[Config, int], Sequence[float]]
"""What a config's losses are in a screen with that seed."""


class Learner(Clocked):
    """Values that are as fast as ``gains`` says; ``losses`` says how configs learn."""

    def __init__(self, losses: Losses, gains: Mapping[str, float] = GAINS) -> None:
        super().__init__(lambda config: worlds.measured(100.0 * math.prod(gains[str(v)] for v in config.values())))
        self._losses = losses

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """In a screen it has its losses."""
        outcome = super().run(request, stop)
        if request.seed is None or outcome.measurement is None:
            return outcome
        losses = worlds.series(self._losses(request.config, request.seed))
        return replace(outcome, measurement=replace(outcome.measurement, losses=(losses,)))


def studied(folder: Path, runner: Learner, **changes: Any) -> tuple[StudyResult, list[Event]]:
    """A study of formats and compilers."""
    events = list[Event]()
    given = {"selection": ("precision", "compile"), "accuracy": AccuracyLimits(samples=600), "trials": 30, **changes}
    plan = worlds.plan(folder, **given)
    result = run_study(plan, runner, StructuredSampler(), events.append, threading.Event(), clock=runner.clock)
    return result, events


def searched(result: StudyResult) -> list[Config]:
    """The configs of its search, in order."""
    return [trial.config for trial in result.trials if trial.phase is Phase.SEARCH]
