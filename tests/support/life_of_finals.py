"""Studies whose finals are looked at over several runs of the same command."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from support import worlds
from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import Event, TrialStarted
from tuner.model import Config, Outcome, Phase, Trial
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.storage.database import Repository
from tuner.study.plan import StudyPlan
from tuner.study.run import run_study

UNSCREENED = AccuracyLimits(max_loss_increase=None)


def speeds(*, lucky: int = -1) -> Callable[[Config], Outcome]:
    """bf16 is twice as fast and nothing else helps; the single run of number ``lucky`` is five times as fast."""
    runs: list[Config] = []

    def outcome(config: Config) -> Outcome:
        runs.append(config)
        gain = 5.0 if len(runs) - 1 == lucky else 2.0 if config == {"precision": "bf16"} else 0.97
        return worlds.measured(100.0 * (gain if config else 1.0) * (1 + 0.001 * (len(runs) % 5)))

    return outcome


def finals(folder: Path) -> dict[str, object]:
    """What the study's record holds of its finals."""
    repository = Repository(worlds.plan(folder).url)
    try:
        return repository.finals(repository.studies()[0].id)
    finally:
        repository.close()


def groups(trials: tuple[Trial, ...]) -> set[tuple[int, ...]]:
    """The candidates, by their trials' numbers, of each finals that were run."""
    return {trial.group for trial in trials if trial.phase is Phase.FINALS}


def plan(folder: Path, trials: int) -> StudyPlan:
    """A study of so many trials whose finals have one candidate and five rounds."""
    return worlds.plan(
        folder, trials=trials, finalists=1, selection=("precision", "compile"), accuracy=UNSCREENED, finals_rounds=5
    )


def run_of(
    study: StudyPlan, outcome_of: Callable[[Config, bool], Outcome], stop: threading.Event | None = None
) -> StudyResult:
    """The study on a machine that knows whether a run is one of the finals."""
    in_finals = False

    def tell(event: Event) -> None:
        nonlocal in_finals
        if isinstance(event, TrialStarted):
            in_finals = event.trial.phase is Phase.FINALS

    runner = ReplayRunner(lambda config: outcome_of(config, in_finals))
    return run_study(study, runner, StructuredSampler(), tell, stop or threading.Event())
