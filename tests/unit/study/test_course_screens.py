"""Screens of scripts whose losses tell nothing: what keeps to the course of the script as written passes."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.learning import AS_WRITTEN, GAINS, Learner, Losses, studied
from support.ran import of

from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.checks import CheckKind
from tuner.analysis.stats import Noninferiority
from tuner.events import Screening
from tuner.model import BASELINE, Config, Outcome, Phase, Trial, Verdict, WeightChange
from tuner.result import StudyResult
from tuner.runner.request import Interrupted, TrialRequest

PASS, INCONCLUSIVE = Noninferiority.PASS, Noninferiority.INCONCLUSIVE


def barely(config: Config, seed: int) -> Sequence[float]:
    """Nothing comes down, as written neither; with bf16 each step has a loss of its own."""
    chance, other = random.Random(seed), random.Random(seed + 100)
    apart = 0.1 if config.get("precision") == "bf16" else 0.0
    return [2.3 + chance.gauss(0, 0.1) + other.gauss(0, apart) for _ in range(60)]


class Mover(Learner):
    """Weights that go the same way whatever the config; ``until`` as many screens as are run before it is stopped."""

    def __init__(self, losses: Losses, *, moves: bool = True, until: int | None = None) -> None:
        super().__init__(losses, {**GAINS, "fp16": 1.5})
        self.moves, self.until, self.screens = moves, until, list[Config]()

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """With its weights where it has a seed."""
        if request.seed is not None:
            if len(self.screens) == self.until:
                raise Interrupted
            self.screens.append(request.config)
        outcome = super().run(request, stop)
        if request.seed is None or outcome.measurement is None or not self.moves:
            return outcome
        change = WeightChange("Adam", 60, 1.0, "abc", ((0.01 * request.seed, 0.02), (0.03, -0.01)))
        return replace(outcome, measurement=replace(outcome.measurement, weights=(change,)))


def screens_of(result: StudyResult) -> list[Trial]:
    return [trial for trial in result.trials if trial.phase is Phase.SCREEN]


def verdicts(result: StudyResult) -> dict[Config, tuple[Noninferiority, int]]:
    """Config → the verdict of its screen, and of how many seeds."""
    return {screened.config: (screened.verdict, screened.seeds) for screened in result.screened}


def test_what_keeps_the_course_is_proven_and_what_leaves_it_costs_one_run(tmp_path: Path) -> None:
    """By the script as written alone nothing was to be told of any of them, and none was run."""
    runner = Mover(barely)
    result, events = studied(tmp_path, runner, budget_s=3000.0)
    found = verdicts(result)
    kept = {config: told for config, told in found.items() if config.get("precision") == "fp16"}
    left = {config: told for config, told in found.items() if config.get("precision") == "bf16"}
    assert kept and set(kept.values()) == {(PASS, 3)}
    assert left and set(left.values()) == {(INCONCLUSIVE, 1)} and len(left) <= 2
    assert all(runner.screens.count(config) == 1 for config in left)
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED and result.winner.config in kept
    told = next(event.result for event in of(events, Screening) if event.result.config == result.winner.config)
    assert [check.verdict for check in told.checks if check.kind is CheckKind.COURSE] == [PASS, PASS]


def test_without_weights_nothing_is_run(tmp_path: Path) -> None:
    """JAX's aren't read: no config could keep to a course that is known."""
    runner = Mover(barely, moves=False)
    result, _ = studied(tmp_path, runner, budget_s=3000.0)
    assert set(runner.screens) == {BASELINE}
    assert set(verdicts(result).values()) == {(INCONCLUSIVE, 0)}


@pytest.mark.parametrize("until", [1, 2, 3, 4, 5, 6, 7])
def test_it_ends_in_the_same_place_wherever_it_was_stopped(tmp_path: Path, until: int) -> None:
    whole, _ = studied(tmp_path / "whole", Mover(barely), budget_s=3000.0)
    studied(tmp_path / "stopped", Mover(barely, until=until), budget_s=3000.0)
    again, _ = studied(tmp_path / "stopped", Mover(barely), budget_s=3000.0)
    assert again.winner is not None and whole.winner is not None
    assert (again.winner.config, again.winner.verdict) == (whole.winner.config, whole.winner.verdict)
    assert verdicts(again)[again.winner.config] == (PASS, 3)
    ran = [(trial.config, trial.seed, trial.samples) for trial in screens_of(again)]
    assert len(ran) == len(set(ran)), "nothing is run twice"
    once_more, _ = studied(tmp_path / "stopped", Mover(barely), budget_s=3000.0)
    assert (once_more.winner, once_more.trials) == (again.winner, again.trials)


class Longer(Mover):
    """Losses that come down in a longer screen than the shortest only, alike whatever the config."""

    def __init__(self, shortest: int) -> None:
        super().__init__(barely)
        self.shortest = shortest
        self.lengths = list[tuple[Config, int]]()

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """By how long its screen is."""
        samples = int(request.window.until_samples or 0)
        self._losses = (lambda config, seed: AS_WRITTEN) if samples > self.shortest else barely
        if request.seed is not None:
            self.lengths.append((request.config, samples))
        return super().run(request, stop)


def test_what_leaves_the_course_is_compared_where_a_longer_screen_tells(tmp_path: Path) -> None:
    first = Longer(0)
    studied(tmp_path / "first", first, budget_s=6000.0, accuracy=AccuracyLimits())
    shortest = min(samples for _, samples in first.lengths)
    runner = Longer(shortest)
    result, _ = studied(tmp_path / "again", runner, budget_s=6000.0, accuracy=AccuracyLimits())
    fastest = next(config for config, _ in runner.lengths if config.get("precision") == "bf16")
    longer = max(samples for _, samples in runner.lengths)
    assert longer > shortest
    assert [samples for config, samples in runner.lengths if config == fastest] == [shortest, longer, longer, longer]
    assert result.winner is not None and result.winner.config == fastest
    assert verdicts(result)[fastest] == (PASS, 3)
