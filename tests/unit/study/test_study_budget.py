"""A study keeps to its budget: on a made-up machine whose clock goes on by what each run takes."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.ran import of

from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import Event, Noted
from tuner.model import Config, Measurement, Outcome, Phase, Verdict
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study

BUDGET_S = 300.0
UNSCREENED = AccuracyLimits(max_loss_increase=None)


class Clocked(ReplayRunner):
    """A replay that takes time: each run as long as its outcome says."""

    def __init__(self, outcome_of: Callable[[Config], Outcome]) -> None:
        super().__init__(self._timed)
        self._timed_outcome = outcome_of
        self.now = 1000.0

    def _timed(self, config: Config) -> Outcome:
        outcome = self._timed_outcome(config)
        self.now += outcome.seconds
        return outcome

    def clock(self) -> float:
        """Seconds."""
        return self.now


def faster(config: Config) -> Outcome:
    """bf16 is twice as fast, workers half as much again; each run takes ten seconds."""
    return worlds.measured(100.0 * (2.0 if "precision" in config else 1.0) * (1.5 if "workers" in config else 1.0))


def outcome_in(seconds: float, outcome: Outcome, *, foreign_cpus: float = 0.0) -> Outcome:
    """The outcome, after so many seconds and beside so much foreign load."""
    assert outcome.measurement is not None
    return replace(outcome, seconds=seconds, measurement=replace(outcome.measurement, foreign_cpus=foreign_cpus))


def study(folder: Path, outcome_of: Callable[[Config], Outcome], **changes: object) -> tuple[StudyResult, list[Event]]:
    runner = Clocked(outcome_of)
    events: list[Event] = []
    plan = worlds.plan(
        folder, **{"budget_s": BUDGET_S, "accuracy": UNSCREENED, "trials": None, "finals_rounds": 5, **changes}
    )
    result = run_study(plan, runner, StructuredSampler(), events.append, threading.Event(), clock=runner.clock)
    return result, events


@pytest.mark.parametrize("accuracy", [UNSCREENED, AccuracyLimits()])
@pytest.mark.parametrize("budget_s", [60.0, 100.0, 150.0, 200.0, 300.0, 1000.0])
def test_no_budget_is_overspent(tmp_path: Path, budget_s: float, accuracy: AccuracyLimits) -> None:
    result, _ = study(tmp_path, faster, budget_s=budget_s, accuracy=accuracy)
    assert result.seconds <= budget_s
    if budget_s >= (100.0 if accuracy is UNSCREENED else 200.0):
        assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED, "what is found is proven"


def test_where_no_proof_fits_the_search_may_have_the_time(tmp_path: Path) -> None:
    """Three rounds of two runs take a minute; of fifty seconds half used to be kept for them, in vain."""
    result, _ = study(tmp_path, faster, budget_s=50.0)
    assert result.winner is None
    assert [trial.phase for trial in result.trials] == [Phase.BASELINE, *[Phase.SEARCH] * 4]


@pytest.mark.parametrize("seed", range(8))
def test_a_machine_that_becomes_slower_overspends_by_a_round_at_most(tmp_path: Path, seed: int) -> None:
    """Runs take 10 s at first and up to 25 s later, and others disturb every other one of them."""
    chance = random.Random(seed)
    runs: list[float] = []

    def loaded(config: Config) -> Outcome:
        runs.append(10.0 if len(runs) < 12 else chance.uniform(10.0, 25.0))
        return outcome_in(runs[-1], faster(config), foreign_cpus=chance.choice([0.0, 1.5]))

    result, _ = study(tmp_path, loaded)
    finalists = {str(trial.config) for trial in result.trials if trial.phase is Phase.FINALS}
    assert result.seconds <= BUDGET_S + len(finalists) * (25.0 - 10.0)


def test_finals_that_can_not_become_a_proof_are_not_begun(tmp_path: Path) -> None:
    """The one trial of the search eats up what was kept for its proof."""

    def slow(config: Config) -> Outcome:
        return outcome_in(180.0 if config else 10.0, faster(config))

    result, events = study(tmp_path, slow)
    assert result.winner is None
    assert not any(trial.phase is Phase.FINALS for trial in result.trials)
    assert result.best is not None and result.best.config
    assert any(note.text.startswith("not proven: no time left") for note in of(events, Noted))


@pytest.mark.parametrize("accuracy", [UNSCREENED, AccuracyLimits()], ids=["unscreened", "screened"])
def test_the_budget_that_is_named_for_want_of_time_proves_it(tmp_path: Path, accuracy: AccuracyLimits) -> None:
    def slow(config: Config) -> Outcome:
        return outcome_in(60.0 if config else 10.0, faster(config))

    first, events = study(tmp_path, slow, selection=("precision",), budget_s=120.0, accuracy=accuracy)
    assert first.winner is None
    named = [re.search(r"with --budget (\d+)m .* precision=", note.text) for note in of(events, Noted)]
    budget_s = next(60.0 * int(match[1]) for match in named if match)
    again, events = study(tmp_path, slow, selection=("precision",), budget_s=budget_s, accuracy=accuracy)
    assert again.seconds <= budget_s
    assert again.winner is not None and again.winner.verdict is Verdict.IMPROVED
    assert not any("--budget" in note.text for note in of(events, Noted))


def test_finals_end_once_three_rounds_can_not_be_had_and_keep_what_they_measured(tmp_path: Path) -> None:
    turns: list[Config] = []

    def slow_once(config: Config) -> Outcome:
        turns.append(config)
        return outcome_in(60.0 if len(turns) == 7 else 10.0, faster(config))

    result, events = study(tmp_path, slow_once, selection=("precision",), budget_s=150.0)
    assert result.seconds <= 150.0
    assert result.winner is not None and result.winner.runs == 2
    assert result.winner.verdict is Verdict.KEEP_BASELINE
    assert result.winner.label == "no proof: no time left after 2 rounds"
    assert any(note.text.startswith("not proven: no time left") for note in of(events, Noted))


def test_candidates_are_dropped_before_the_finals_are_given_up(tmp_path: Path) -> None:
    """Runs take ten seconds until the finals begin, and 25 from there on: three rounds of four don't fit."""
    turns: list[Config] = []

    def slower(config: Config) -> Outcome:
        turns.append(config)
        rate = 100.0 * (2.0 if "precision" in config else 1.0) * (1.0 + 0.1 * (len(config) > 0))
        return outcome_in(10.0 if len(turns) <= 4 else 25.0, worlds.measured(rate))

    result, events = study(tmp_path, slower, trials=4, finalists=3, budget_s=300.0, selection=("precision", "compile"))
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    assert "precision" in result.winner.config
    assert result.seconds <= 300.0
    assert any(note.text.startswith("no time for all candidates") for note in of(events, Noted))


def test_finals_that_were_cut_short_stay_decided(tmp_path: Path) -> None:
    turns: list[Config] = []

    def slower(config: Config) -> Outcome:
        turns.append(config)
        return outcome_in(10.0 if len(turns) <= 8 else 20.0, faster(config))

    plan = {"selection": ("precision",), "trials": 3, "budget_s": 150.0, "most_rounds": 11}
    first, _ = study(tmp_path, slower, **plan)
    assert first.winner is not None and first.winner.verdict is Verdict.IMPROVED
    assert 3 <= first.winner.runs < 5
    again, _ = study(tmp_path, slower, **{**plan, "budget_s": 10_000.0})
    assert again.winner == first.winner
    assert again.trials == first.trials


@pytest.mark.parametrize(("budget_s", "repeated"), [(170.0, True), (150.0, False)])
def test_a_disturbed_trial_is_repeated_only_beside_the_proofs_time(
    tmp_path: Path, budget_s: float, repeated: bool
) -> None:
    """Three rounds take 105 s after a baseline of 10 s and a trial of 25 s: a repeat makes it 165 s."""

    def disturbed(config: Config) -> Outcome:
        return outcome_in(25.0, faster(config), foreign_cpus=1.0) if config else outcome_in(10.0, faster(config))

    result, events = study(tmp_path, disturbed, selection=("precision",), budget_s=budget_s)
    assert result.seconds <= budget_s
    assert any(n.text.startswith("trial 1 is measured again") for n in of(events, Noted)) is repeated
    assert result.winner is not None and result.winner.runs >= 3


@pytest.mark.parametrize(("budget_s", "repeated"), [(60.0, True), (40.0, False)])
def test_a_disturbed_baseline_is_repeated_where_a_trial_still_fits(
    tmp_path: Path, budget_s: float, repeated: bool
) -> None:
    """Else a trial on a calm machine is told to be many times faster than the script as written."""
    baselines = iter([1.0])

    def busy_at_first(config: Config) -> Outcome:
        return outcome_in(10.0, faster(config), foreign_cpus=next(baselines, 0.0) if not config else 0.0)

    result, events = study(tmp_path, busy_at_first, budget_s=budget_s)
    assert result.seconds <= budget_s
    assert any(n.text.startswith("trial 0 is measured again") for n in of(events, Noted)) is repeated


def test_what_is_early_to_end_is_the_search_only(tmp_path: Path) -> None:
    """A hopeless trial ends early. An anchor or a run of the finals that did would look steadier than it is."""
    runner = ReplayRunner(worlds.World().outcome)
    plan = worlds.plan(tmp_path, trials=12, anchor_every=2)
    result = run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event())
    phases = {trial.number: trial.phase for trial in result.trials}
    seen: dict[Phase, set[bool]] = {}
    for request in runner.requests:
        seen.setdefault(phases[int(request.folder.name)], set()).add(request.window.hopeless_below > 0)
    assert seen == {
        Phase.BASELINE: {False}, Phase.SEARCH: {True}, Phase.ANCHOR: {False}, Phase.SCREEN: {False},
        Phase.FINALS: {False},
    }  # fmt: skip


def test_a_measurement_without_blocks_has_no_window_to_halve(tmp_path: Path) -> None:
    def bare(config: Config) -> Outcome:
        outcome = faster(config)
        assert isinstance(outcome.measurement, Measurement)
        return replace(outcome, measurement=replace(outcome.measurement, blocks=()))

    result, _ = study(tmp_path, bare, budget_s=200.0)
    assert result.winner is not None
