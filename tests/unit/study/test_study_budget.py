"""A study keeps to its budget: on a made-up machine whose clock goes on by what each run takes."""

from __future__ import annotations

import math
import random
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.clocked import Clocked
from support.ran import of

from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import Event, FinalsStarted, Noted
from tuner.model import (
    Block,
    Config,
    Measurement,
    Outcome,
    OutcomeKind,
    Phase,
    Ratio,
    Reference,
    Trial,
    Verdict,
)
from tuner.report.summary import summary
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.storage.database import Repository
from tuner.study.budget import Budget
from tuner.study.lengths import window_s
from tuner.study.run import run_study
from tuner.study.study_time import StudyTime

BUDGET_S = 300.0
SLOW = pytest.mark.slow
UNSCREENED = AccuracyLimits(max_loss_increase=None)


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
@pytest.mark.parametrize(
    "budget_s", [60.0, 150.0, 300.0, *(pytest.param(each, marks=SLOW) for each in (100.0, 200.0, 1000.0))]
)
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


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=SLOW) for seed in range(3, 8))])
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


@pytest.mark.parametrize("slow_from", [5, 6])
def test_screens_on_a_machine_that_becomes_slower_end_with_the_budget(tmp_path: Path, slow_from: int) -> None:
    """Each of six runs took a minute in place of what was foreseen: seven minutes of five, and four of two and a half
    on a real machine. What was run stays, and the same study with more time goes on with it.
    """
    runs: list[Config] = []

    def slower(config: Config) -> Outcome:
        runs.append(config)
        return outcome_in(60.0 if slow_from < len(runs) < 20 else 10.0, faster(config))

    limits = AccuracyLimits(samples=1000)
    result, events = study(tmp_path, slower, trials=5, accuracy=limits)
    screens = [trial.seed for trial in result.trials if trial.phase is Phase.SCREEN]
    assert screens and result.seconds <= BUDGET_S and result.winner is None
    assert any(note.text.startswith("no time left to compare how") for note in of(events, Noted))
    runs.extend([Config()] * 20)
    again, _ = study(tmp_path, slower, trials=5, accuracy=limits, budget_s=1000.0)
    assert again.winner is not None and again.winner.verdict is Verdict.IMPROVED
    kept = [trial.number for trial in result.trials if trial.phase is Phase.SCREEN]
    assert kept == [trial.number for trial in again.trials if trial.phase is Phase.SCREEN][: len(kept)]


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
        precision = {"bf16": 2.0, "fp16": 1.8}.get(str(config.get("precision")), 1.0)
        rate = 100.0 * precision * (1.0 + 0.1 * len(config))
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


@pytest.mark.parametrize(
    ("rate", "line"),
    [(50.0, "can't tell: other processes or the hypervisor disturbed 2 of the 2 trials of the search; no trial was"),
     (200.0, "that is no more than a hint: other processes or the hypervisor disturbed 2 of the 2 trials")],
)  # fmt: skip
def test_nothing_is_concluded_from_disturbed_trials(tmp_path: Path, rate: float, line: str) -> None:
    """Neither that nothing is faster nor that something is: a machine that was taken away shows both."""

    def busy(config: Config) -> Outcome:
        return outcome_in(10.0, worlds.measured(rate), foreign_cpus=1.0) if config else faster(config)

    result, _ = study(tmp_path, busy, selection=("precision",), budget_s=35.0)
    assert result.winner is None
    assert line in summary(result, {}, "")


def test_a_gain_over_a_disturbed_baseline_is_told_to_be_rough(tmp_path: Path) -> None:
    """Where others take most cores from the script as written alone, each config reads many times as fast."""

    def busy(config: Config) -> Outcome:
        return faster(config) if config else outcome_in(10.0, worlds.measured(50.0), foreign_cpus=6.0)

    result, _ = study(tmp_path, busy, selection=("precision",), budget_s=45.0)
    said = "no more than a hint: the script as written was disturbed when it was measured: other processes used 6"
    assert result.winner is None and result.disturbed == 0 and said in summary(result, {}, "")


def test_that_nothing_can_be_screened_in_time_is_said_once(tmp_path: Path) -> None:
    _, events = study(tmp_path, faster, budget_s=100.0, accuracy=AccuracyLimits())
    assert sum(note.text.startswith("no time left to compare how") for note in of(events, Noted)) == 1


def test_what_there_was_no_time_for_is_tried_again_only_when_resumed(tmp_path: Path) -> None:
    """Each time it would take what is left of the search."""
    late: list[bool] = [True]

    def compiling(config: Config) -> Outcome:
        if "compile" in config and late[0]:
            return Outcome(OutcomeKind.UNFINISHED, "out-of-time", "the study had no more time for it", seconds=30.0)
        return faster(config)

    def tried(result: StudyResult) -> list[Config]:
        return [t.config for t in result.trials if t.phase is Phase.SEARCH and "compile" in t.config]

    plan: dict[str, object] = {"selection": ("precision", "compile"), "accuracy": UNSCREENED}
    first, _ = study(tmp_path, compiling, budget_s=250.0, **plan)
    assert [config["compile"] for config in tried(first)] in (["default"], ["default", "max"])
    late[0] = False
    again, _ = study(tmp_path, compiling, budget_s=1000.0, **plan)
    assert tried(again).count(tried(first)[0]) == 2


def test_the_search_leaves_time_for_fewer_rounds_where_all_of_them_do_not_fit(tmp_path: Path) -> None:
    """Of a proof with five rounds there may be none: that is no reason to spend what three would take."""

    def slow_to_try(config: Config) -> Outcome:
        return outcome_in(10.0 if "compile" not in config else 35.0, faster(config))

    for budget_s in (190.0, 200.0, 210.0, 220.0):
        result, _ = study(tmp_path / str(budget_s), slow_to_try, budget_s=budget_s, accuracy=UNSCREENED)
        assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED, budget_s
        assert result.winner.runs >= 3 and result.seconds <= budget_s


def with_gain(trial: Trial, gain: float) -> Outcome:
    """The trial's outcome, if it had been so many times as fast as the script as written in its turns."""
    assert trial.outcome is not None and trial.outcome.measurement is not None
    reference = Reference(100.0, Ratio(gain, gain * 0.9, gain * 1.1), 12)
    measured = replace(trial.outcome.measurement, rate=100.0 * gain, reference=reference)
    return replace(trial.outcome, measurement=measured)


@pytest.mark.parametrize(("half", "rounds"), [(0.01, 5), (0.12, 19), (1.0, 27)])
def test_as_many_rounds_are_kept_time_for_as_the_noise_by_turns_asks_for(
    tmp_path: Path, half: float, rounds: int
) -> None:
    """Of a search trial whose window is as long as one of the finals, and whose interval is that wide."""
    plan = worlds.plan(tmp_path, accuracy=UNSCREENED, finals_rounds=5)
    window = Block(100, 10, window_s(plan, Phase.FINALS, by_turns=True), 0.0)
    gain = Ratio(2.0, 2.0 * math.exp(-half), 2.0 * math.exp(half))
    as_written, faster_one = worlds.measured(100.0), worlds.measured(200.0)
    assert faster_one.measurement is not None
    measured = replace(faster_one.measurement, blocks=(window,), reference=Reference(100.0, gain, 12))
    trials = [
        Trial(0, Phase.BASELINE, Config(), "", as_written),
        *(Trial(n, Phase.SEARCH, Config(workers=n), "", replace(faster_one, measurement=measured)) for n in (1, 2, 4)),
    ]  # fmt: skip
    slow = [trials[0], *(replace(trial, outcome=with_gain(trial, 1.05)) for trial in trials[1:])]
    for known, by_turns, expected in (
        (trials, False, 5), (trials, True, rounds), (trials[:3], True, 5), (slow, True, 5)
    ):  # fmt: skip
        time = StudyTime(plan, Budget(None, 1e5, 0.0, finals_share=0.0), 0.0, known, None, by_turns=by_turns)
        assert time.rounds_to_tell() == expected
        assert time.reserved_s() == time.proof_s(known[1].config, rounds=expected)


@pytest.mark.parametrize("budget_s", [220.0, 320.0, *(pytest.param(each, marks=SLOW) for each in (250.0, 290.0))])
def test_all_rounds_that_there_is_time_for_come_before_one_look(tmp_path: Path, budget_s: float) -> None:
    """Five rounds of two runs, 10 s each, fit, and eight don't; with time for eight there may be a second look."""

    def noisy(config: Config) -> Outcome:
        rate = 130.0 if "precision" in config else 100.0
        return worlds.measured(rate * chance.uniform(0.8, 1.2))

    chance = random.Random(3)
    result, events = study(tmp_path, noisy, budget_s=budget_s, finalists=1, trials=9)
    (started,) = of(events, FinalsStarted)
    left_s = budget_s - 10.0 * len([trial for trial in result.trials if trial.phase is not Phase.FINALS])
    repository = Repository(f"sqlite:///{tmp_path / 'study.db'}")
    stored = repository.finals(repository.studies()[0].id)
    repository.close()
    assert started.rounds == (5 if left_s >= 160.0 else left_s // 20.0), left_s
    assert (stored["most"] == started.rounds) is (left_s < 160.0)


@pytest.mark.parametrize("gain", [1.0, 1.3])
def test_rounds_that_take_less_than_foreseen_are_followed_by_more_without_a_look(tmp_path: Path, gain: float) -> None:
    """Six rounds are foreseen to fit, and half as many more are the most; what they say doesn't matter."""

    def quicker(config: Config) -> Outcome:
        runs.append(config)
        rate = (gain if len(runs) > 8 else 1.3) if "precision" in config else 1.0
        outcome = worlds.measured(100.0 * rate * chance.uniform(0.8, 1.2))
        return outcome_in(10.0 if len(runs) <= 8 else 6.0, outcome)

    runs, chance = list[Config](), random.Random(3)
    result, events = study(tmp_path, quicker, budget_s=200.0, finalists=1, trials=8)
    (started,) = of(events, FinalsStarted)
    assert started.rounds == 6 and result.winner is not None and result.winner.runs == 9


def test_a_longer_budget_makes_no_second_look_of_what_was_looked_at_once(tmp_path: Path) -> None:
    """Each look has its share of the permitted error, which is spent: one more round would be one more chance."""

    def noisy(config: Config) -> Outcome:
        return worlds.measured((102.0 if "precision" in config else 100.0) * chance.uniform(0.9, 1.1))

    chance = random.Random(3)
    first, _ = study(tmp_path, noisy, budget_s=220.0, finalists=1, trials=9)
    again, _ = study(tmp_path, noisy, budget_s=260.0, finalists=1, trials=9)
    counts = [len([t for t in result.trials if t.phase is Phase.FINALS]) for result in (first, again)]
    assert counts[0] == counts[1] > 0
    assert again.winner is not None and first.winner is not None and again.winner.speedup == first.winner.speedup
