"""Screens of scripts whose losses tell nothing: what keeps to the course of the script as written passes."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support import overhead, worlds
from support.learning import AS_WRITTEN, GAINS, Learner, Losses, studied
from support.overhead import Overhead
from support.ran import of

from tuner.analysis.accuracy import SEEDS, AccuracyLimits
from tuner.analysis.checks import CheckKind
from tuner.analysis.stats import Noninferiority
from tuner.events import Screening
from tuner.knowledge import samples_per_step
from tuner.model import BASELINE, Config, LossSeries, Outcome, Phase, Trial, Verdict, WeightChange
from tuner.result import StudyResult
from tuner.runner.request import Interrupted, TrialRequest
from tuner.study.baseline import measure_baseline
from tuner.study.context import StudyContext
from tuner.study.run import opened
from tuner.study.screens import lengths_of, missing_s, screen_of
from tuner.study.search_space import resolve_space

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


class Silent(Mover):
    """A script that never computes its loss; with bf16 its weights go elsewhere."""

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """Without any loss."""
        outcome = super().run(request, stop)
        if outcome.measurement is None:
            return outcome
        elsewhere = ((0.02, 0.02), (0.03, 0.01)) if request.config.get("precision") == "bf16" else None
        weights = [replace(each, changes=elsewhere or each.changes) for each in outcome.measurement.weights]
        return replace(outcome, measurement=replace(outcome.measurement, losses=(), weights=tuple(weights)))


def test_where_no_loss_is_computed_what_moves_the_weights_alike_is_proven(tmp_path: Path) -> None:
    """And no longer screen is run for what doesn't: it would show no loss either."""
    runner = Silent(barely)
    result, _ = studied(tmp_path, runner, budget_s=3000.0, accuracy=AccuracyLimits())
    found = verdicts(result)
    assert {told for config, told in found.items() if config.get("precision") == "fp16"} == {(PASS, 3)}
    assert {told for config, told in found.items() if config.get("precision") == "bf16"} == {(INCONCLUSIVE, 1)}
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    assert result.winner.config.get("precision") == "fp16"
    assert len({trial.samples for trial in screens_of(result)}) == 1
    left = next(one for one in result.screened if one.config.get("precision") == "bf16")
    assert "no training loss was seen" in left.reason and "screen-samples" not in left.would_decide


class InCalls(Silent):
    """It takes many steps in a call, and its weights are seen after each: in a longer screen often enough to tell."""

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """Three looks in a short screen, and twelve in one of four times as many samples."""
        outcome = super().run(request, stop)
        if outcome.measurement is None or request.seed is None:
            return outcome
        self.shortest = min(self.shortest, request.window.until_samples or 0.0)
        looks = 3 if request.window.until_samples == self.shortest else 12
        weights = tuple(replace(each, steps=looks) for each in outcome.measurement.weights)
        return replace(outcome, measurement=replace(outcome.measurement, weights=weights))

    shortest = math.inf


def test_where_weights_were_looked_at_too_seldom_a_longer_screen_follows(tmp_path: Path) -> None:
    result, _ = studied(tmp_path, InCalls(barely), budget_s=3000.0, accuracy=AccuracyLimits())
    found = verdicts(result)
    assert {told for config, told in found.items() if config.get("precision") == "fp16"} == {(PASS, 3)}
    assert len({trial.samples for trial in screens_of(result)}) == 2


def test_without_losses_and_weights_one_run_shows_that_no_screen_tells(tmp_path: Path) -> None:
    """It was left open for lack of time, with a budget that was to prove it and couldn't."""
    runner = Silent(barely, moves=False)
    result, _ = studied(tmp_path, runner, budget_s=200.0, accuracy=AccuracyLimits())
    assert runner.screens == [BASELINE]
    assert result.screened and not any(one.lacked_time for one in result.screened)
    assert result.lacked_time is None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """A study that nothing stops."""
    result, _ = studied(tmp_path_factory.mktemp("whole"), Mover(barely), budget_s=3000.0)
    return result


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize(
    "until", [pytest.param(until, marks=() if until in (3, 7) else pytest.mark.slow) for until in range(1, 8)]
)
def test_it_ends_in_the_same_place_wherever_it_was_stopped(whole: StudyResult, tmp_path: Path, until: int) -> None:
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
    """Losses that come down in a longer screen than the shortest only, alike whatever the config; else as ``short``
    says.
    """

    def __init__(self, shortest: int, short: Losses = barely, until: int | None = None) -> None:
        super().__init__(barely, until=until)
        self.shortest, self.short = shortest, short
        self.lengths = list[tuple[Config, int]]()

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """By how long its screen is."""
        samples = int(request.window.until_samples or 0)
        self._losses = (lambda config, seed: AS_WRITTEN) if samples > self.shortest else self.short
        if request.seed is not None:
            self.lengths.append((request.config, samples))
        return super().run(request, stop)


def with_one_seed(config: Config, seed: int) -> Sequence[float]:
    """As ``barely``, but that bf16 leaves the course with the second seed only."""
    return barely(config if seed != 1 else BASELINE, seed)


@pytest.fixture(scope="module")
def shortest(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Samples of the shortest screen of such a study."""
    first = Longer(0)
    studied(tmp_path_factory.mktemp("first"), first, budget_s=6000.0, accuracy=AccuracyLimits())
    return min(samples for _, samples in first.lengths)


@pytest.mark.parametrize(("short", "seeds"), [(barely, 1), (with_one_seed, 2)], ids=["at once", "with the second seed"])
def test_what_leaves_the_course_is_compared_where_a_longer_screen_tells(
    tmp_path: Path, shortest: int, short: Losses, seeds: int
) -> None:
    runner = Longer(shortest, short)
    result, _ = studied(tmp_path, runner, budget_s=6000.0, accuracy=AccuracyLimits())
    fastest = next(config for config, _ in runner.lengths if config.get("precision") == "bf16")
    longer = max(samples for _, samples in runner.lengths)
    assert longer > shortest
    ran = [samples for config, samples in runner.lengths if config == fastest]
    assert ran == [*[shortest] * seeds, longer, longer, longer]
    assert result.winner is not None and result.winner.config == fastest
    assert verdicts(result)[fastest] == (PASS, 3)


@contextmanager
def again(folder: Path, runner: Mover) -> Iterator[tuple[StudyContext, Trial]]:
    """The study once more, before anything is proven, and the first config that it has screened."""
    limits = AccuracyLimits()
    plan = worlds.plan(folder, selection=("precision", "compile"), accuracy=limits, trials=30, budget_s=6000.0)
    with opened(plan, runner, lambda event: None, threading.Event(), clock=runner.clock) as study:
        measure_baseline(study)
        resolve_space(study)
        screened = next(trial for trial in study.trials if trial.phase is Phase.SCREEN and trial.config)
        yield study, next(trial for trial in study.searched if trial.config == screened.config)


@pytest.mark.parametrize("until", [4, 5, 6])
def test_what_was_stopped_in_a_longer_screen_has_no_verdict_yet(tmp_path: Path, shortest: int, until: int) -> None:
    """Its record was taken to say what the shorter one had shown: that it leaves the course."""
    studied(tmp_path, Longer(shortest, until=until), budget_s=6000.0, accuracy=AccuracyLimits())
    with again(tmp_path, Longer(shortest)) as (study, candidate):
        assert screen_of(study, candidate) is None


def test_no_time_is_kept_for_runs_that_come_to_nothing(tmp_path: Path) -> None:
    """What has left the course isn't run over more samples where the script as written shows nothing there either."""
    studied(tmp_path, Mover(barely), budget_s=6000.0, accuracy=AccuracyLimits())
    with again(tmp_path, Mover(barely)) as (study, candidate):
        told, both = screen_of(study, candidate), lengths_of(study, candidate)
        assert told is not None and told.seeds == 1 and not told.lacked_time
        assert len(both) == 2 and [missing_s(study, candidate, SEEDS, samples) for samples in both] == [0.0, 0.0]


class Slow(Longer):
    """A run of a longer screen takes ``longer_s`` more."""

    longer_s = 60.0

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """With its seconds."""
        outcome = super().run(request, stop)
        if request.seed is None or int(request.window.until_samples) <= self.shortest:
            return outcome
        self.now += self.longer_s
        return replace(outcome, seconds=outcome.seconds + self.longer_s)


def test_the_budget_that_is_named_has_the_time_for_a_longer_screen(tmp_path: Path, shortest: int) -> None:
    """It had none of it: the same command lacked the time once more, and named a budget again."""
    limits = AccuracyLimits()
    result, _ = studied(tmp_path, Slow(shortest), budget_s=500.0, accuracy=limits, trials=8)
    late = result.lacked_time
    assert late is not None and result.screened[0].config == late.config
    assert (result.screened[0].seeds, result.screened[0].lacked_time) == (1, True)
    again, _ = studied(tmp_path, Slow(shortest), budget_s=late.budget_s, accuracy=limits, trials=8)
    assert again.winner is not None and (again.winner.config, again.winner.verdict) == (late.config, Verdict.IMPROVED)


class Level(Overhead):
    """A loss that tells nothing, and weights that go the same way."""

    def outcome(self, config: Config, chance: random.Random, samples: float) -> Outcome:
        outcome, step = super().outcome(config, chance, samples), self.step_of(config)
        assert outcome.measurement is not None
        steps = int((samples or 40 * step) / step)
        points = tuple((step * (n + 1.0), 2.3 + chance.gauss(0, 0.1)) for n in range(steps))
        losses, change = LossSeries("a.py:9", "a.py:9", points), WeightChange("Adam", 60, 1.0, "abc", ((0.01, 0.02),))
        return replace(outcome, measurement=replace(outcome.measurement, losses=(losses,), weights=(change,)))


def test_no_larger_batch_is_run_for_a_course_that_it_cannot_keep(tmp_path: Path) -> None:
    """Its losses come at other samples."""
    ran = overhead.studied(tmp_path, Level())
    steps = {samples_per_step({**overhead.WRITTEN, **trial.config}) for trial in screens_of(ran.result)}
    assert steps <= {32}
    assert ran.result.larger is not None and not ran.result.larger.proven
