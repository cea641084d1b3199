"""What a study does where a screen can't tell: a longer one, the next candidate that needs none, and it says so."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.ran import of

from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.stats import Noninferiority
from tuner.events import Event, Screening
from tuner.export import PROFILE
from tuner.model import Config, LossSeries, Outcome, Verdict
from tuner.report.summary import summary
from tuner.report.trials import TrialsReport
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study

Losses = Callable[[Config, float], tuple[LossSeries, ...]]
"""What a config's losses are in a screen over so many samples."""
USUAL, LONGER = 1000, 4000
"""The baseline takes 100 samples a second."""


class Learner(ReplayRunner):
    """bf16 is fast, workers are faster and harmless; ``losses`` says how a config learns in a screen."""

    def __init__(self, losses: Losses) -> None:
        super().__init__(self._speed)
        self._losses = losses

    @staticmethod
    def _speed(config: Config) -> Outcome:
        gain = (2.0 if "precision" in config else 1.0) * (1.2 if "workers" in config else 1.0)
        return worlds.measured(100.0 * gain, 0.3)

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome = super().run(request, stop)
        if request.seed is None or outcome.measurement is None:
            return outcome
        losses = self._losses(request.config, request.window.until_samples)
        seconds = 3.0 + request.window.until_samples / 100
        return replace(outcome, seconds=seconds, measurement=replace(outcome.measurement, losses=losses))

    @property
    def screened(self) -> list[tuple[bool, float]]:
        """Of each run of a screen whether it was a candidate's, and its samples."""
        return [(bool(r.config), r.window.until_samples) for r in self.requests if r.seed is not None]


def down(start: float, end: float, site: str = "train.py:9") -> LossSeries:
    return worlds.series([start] * 10 + [end] * 30, site)


def barely(config: Config, samples: float) -> tuple[LossSeries, ...]:
    return (down(2.303, 2.283),)


def later(config: Config, samples: float) -> tuple[LossSeries, ...]:
    return (down(2.303, 2.283 if samples <= USUAL else 1.5),)


def gan(config: Config, samples: float) -> tuple[LossSeries, ...]:
    return down(1.4, 0.5, "train.py:70"), down(0.7, 2.0, "train.py:80")


def studied(
    folder: Path, losses: Losses, stop: threading.Event | None = None, **changes: Any
) -> tuple[StudyResult, Learner, list[Event]]:
    runner, events = Learner(losses), list[Event]()
    plan = worlds.plan(folder, **{"trials": 8, "selection": ("workers", "precision"), **changes})
    result = run_study(plan, runner, StructuredSampler(), events.append, stop or threading.Event())
    return result, runner, events


def test_where_no_screen_tells_what_needs_none_is_proven_and_the_rest_is_named(tmp_path: Path) -> None:
    result, runner, events = studied(tmp_path, barely)
    assert result.best is not None and "precision" in result.best.config
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    assert set(result.winner.config) == {"workers"}
    assert runner.screened == [(False, USUAL), (False, LONGER)], "a look at the script as written says it all"
    [screened] = result.screened
    assert (screened.verdict, screened.seeds, screened.samples) == (Noninferiority.INCONCLUSIVE, 0, LONGER)
    assert len(of(events, Screening)) == 1
    said = summary(result, {}, "best.json")
    assert "the training loss went from 2.303 to 2.283" in said and "--screen-samples" in said
    content = PROFILE.serialize(result, None)
    assert content is not None
    [profile] = json.loads(content)["profiles"]
    assert profile["accuracy"] == {"tier": 1, "verdict": "not-needed"}
    [screen] = profile["screens"]
    assert (screen["config"], screen["verdict"]) == (dict(result.best.config), "inconclusive")
    assert screen["sample_efficiency"] is None and "--screen-samples" in screen["would_decide"]


def test_a_longer_screen_tells_where_the_script_learns_later(tmp_path: Path) -> None:
    result, runner, _ = studied(tmp_path, later, finalists=1)
    assert result.winner is not None and "precision" in result.winner.config
    [screened] = result.screened
    assert (screened.verdict, screened.seeds, screened.samples) == (Noninferiority.PASS, 3, LONGER)
    assert runner.screened[0] == (False, USUAL)
    assert runner.screened.count((True, LONGER)) == runner.screened.count((False, LONGER)) == 3


def test_a_candidate_that_never_learns_fails_in_the_longer_screen(tmp_path: Path) -> None:
    def frozen(config: Config, samples: float) -> tuple[LossSeries, ...]:
        return (down(2.303, 2.303),) if config else later(config, samples)

    result, _, _ = studied(tmp_path, frozen)
    assert {screened.verdict for screened in result.screened} == {Noninferiority.FAIL}
    assert result.winner is not None and "precision" not in result.winner.config


def test_the_screens_that_were_through_are_told_of_a_study_that_is_stopped_in_the_next_one(tmp_path: Path) -> None:
    """They were told while it ran, and neither the summary nor best.json knew of them."""
    stop, screened = threading.Event(), list[Config]()

    def frozen(config: Config, samples: float) -> tuple[LossSeries, ...]:
        if config and config not in screened:
            screened.append(config)
        if len(screened) > 1:
            stop.set()
        return (down(2.303, 2.303),) if config else later(config, samples)

    result, _, events = studied(tmp_path, frozen, stop)
    assert result.interrupted and len(screened) == 2
    [told] = of(events, Screening)
    assert result.screened == (told.result,) and told.result.verdict is Noninferiority.FAIL
    assert told.result.config == screened[0]


def test_a_gan_exports_what_needs_no_screen(tmp_path: Path) -> None:
    result, runner, _ = studied(tmp_path, gan)
    assert runner.screened == [(False, USUAL)], "no longer screen would tell"
    assert result.winner is not None and set(result.winner.config) == {"workers"}
    assert "as in a GAN" in result.screened[0].reason


def test_the_length_that_was_asked_for_stands(tmp_path: Path) -> None:
    result, runner, _ = studied(tmp_path, barely, accuracy=AccuracyLimits(samples=640))
    assert runner.screened == [(False, 640)]
    assert result.screened[0].samples == 640


def test_without_time_for_a_longer_screen_the_shorter_one_is_the_answer(tmp_path: Path) -> None:
    """Of 130 s a run of a screen has the fewest steps, sixty: 375 samples, and four times as many in a longer one."""
    result, runner, _ = studied(tmp_path, barely, budget_s=130.0)
    assert (False, 1500) not in runner.screened
    assert [screened.samples for screened in result.screened] == [375]


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize("losses", [barely, later, gan])
def test_a_study_that_is_derived_again_says_the_same_and_runs_nothing(tmp_path: Path, losses: Losses) -> None:
    first, _, _ = studied(tmp_path, losses, budget_s=10_000.0)
    again, runner, _ = studied(tmp_path, losses, budget_s=0.001)
    assert runner.requests == []
    assert again.screened == first.screened and again.winner == first.winner


def test_what_needs_no_screen_is_found_behind_any_number_that_do(tmp_path: Path) -> None:
    """Every faster config has the precision that can't be judged; the finals' places are not filled by them."""
    result, _, _ = studied(tmp_path, barely, trials=16, selection=(), finalists=1)
    assert result.winner is not None and result.winner.config
    assert not {"precision", "batch_size"} & set(result.winner.config)


def test_the_trials_of_a_screen_tell_as_from_how_many_samples_each_learned(tmp_path: Path) -> None:
    result, _, _ = studied(tmp_path, later, finalists=1)
    documents = TrialsReport(result.trials, worlds.OBJECTIVE).documents()
    candidates = [d for d in documents if d["phase"] == "screen" and d["config"]]
    assert [d["sample_efficiency"] for d in candidates] == pytest.approx([1.0] * 3)
    assert all(d["sample_efficiency"] is None for d in documents if d not in candidates)
