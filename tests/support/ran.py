"""A study that was run on a made-up machine, with all that it gave, told and asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tuner.events import Event
from tuner.model import Config, Outcome, Phase
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.search.chain import Chain
from tuner.search.structured import StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.study.plan import StudyPlan
from tuner.study.run import run_study

SEARCHED = (Phase.BASELINE, Phase.SEARCH)


class Ran:
    """A study that was run: what it gave, told and asked of its runner."""

    def __init__(
        self, plan: StudyPlan, outcome_of: Callable[[Config], Outcome], stop: threading.Event | None = None
    ) -> None:
        self.events: list[Event] = []
        self.runner = ReplayRunner(outcome_of)
        sampler = Chain(StructuredSampler(), TpeSampler(plan.seed))
        self.result: StudyResult = run_study(plan, self.runner, sampler, self.events.append, stop or threading.Event())

    @property
    def configs(self) -> list[Config]:
        return [request.config for request in self.runner.requests]


def of(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]
