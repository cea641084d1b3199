"""Finals over the life of a study: which are new ones, and what stands of earlier ones."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.life_of_finals import finals, groups, plan, run_of, speeds
from support.ran import Ran, of

from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.learning import LATER
from tuner.events import Noted, PairFinished
from tuner.export import PROFILE
from tuner.model import Config, Outcome, OutcomeKind, Phase, Verdict
from tuner.report.summary import summary
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study


def test_a_proof_stands_where_later_finals_of_another_config_prove_nothing(tmp_path: Path) -> None:
    first = Ran(plan(tmp_path, 2), speeds()).result
    assert first.winner is not None and first.winner.verdict is Verdict.IMPROVED
    resumed = Ran(plan(tmp_path, 4), speeds(lucky=1)).result
    assert len(groups(resumed.trials)) == 2, "the lucky one had its finals"
    assert resumed.winner == first.winner
    assert finals(tmp_path)["opening"] == 2


def test_the_same_candidates_again_are_no_new_finals(tmp_path: Path) -> None:
    first = Ran(plan(tmp_path, 2), speeds()).result
    resumed = Ran(plan(tmp_path, 4), speeds()).result
    assert len(resumed.trials) > len(first.trials)
    assert groups(resumed.trials) == groups(first.trials)
    assert resumed.winner == first.winner
    assert finals(tmp_path)["opening"] == 1


def test_the_ratio_told_after_a_round_is_the_one_that_is_judged(tmp_path: Path) -> None:
    calm, runs = speeds(), Counter[str]()

    def disturbed_in_its_first_round(config: Config) -> Outcome:
        outcome, times = calm(config), runs["bf16"]
        runs["bf16"] += config == {"precision": "bf16"}
        if outcome.measurement is None or not config or times not in (1, 2):  # that round, and when it is repeated
            return outcome
        return replace(outcome, measurement=replace(outcome.measurement, rate=60.0, foreign_cpus=7.0))

    ran = Ran(plan(tmp_path, 2), disturbed_in_its_first_round)
    told = [event.so_far for event in of(ran.events, PairFinished)]
    assert ran.result.winner is not None and ran.result.winner.runs == 4, "of five rounds"
    assert told[-1] == ran.result.winner.speedup
    assert told[-1].low > 1.9


def profile(result: StudyResult) -> dict[str, object]:
    content = PROFILE.serialize(result, None)
    assert content is not None
    [document] = json.loads(content)["profiles"]
    return dict(document)


def screened_study(folder: Path, trials: int, variants: float) -> StudyResult:
    """bf16 is twice as fast; with another knob beside it five times, but only the first time, then by ``variants``."""
    seen = Counter[Config]()

    def outcome(config: Config) -> Outcome:
        seen[config] += 1
        gain = 2.0 if config == {"precision": "bf16"} else 1.0
        if "precision" in config and len(config) > 1:
            gain = variants if seen[config] > 1 else 5.0
        return worlds.measured(100.0 * gain * (1 + 0.001 * (sum(seen.values()) % 5)), 0.3)

    knobs = ("precision", "workers", "compile")
    return Ran(worlds.plan(folder, trials=trials, finalists=1, selection=knobs, finals_rounds=3), outcome).result


def proven_bf16(folder: Path) -> StudyResult:
    for trials in range(2, 12):
        result = screened_study(folder, trials, 2.0)
        if result.winner is not None and result.winner.config == {"precision": "bf16"}:
            return result
    raise AssertionError("bf16 alone was never proven")


def test_a_proof_stands_though_its_config_is_not_screened_again(tmp_path: Path) -> None:
    first = proven_bf16(tmp_path)
    searched = sum(trial.phase in (Phase.BASELINE, Phase.SEARCH) for trial in first.trials)
    resumed = screened_study(tmp_path, searched + 6, 0.9)
    assert len(groups(resumed.trials)) > len(groups(first.trials)), "a variant had its finals"
    assert resumed.winner == first.winner
    document = profile(resumed)
    assert document["config"] == {"precision": "bf16"}
    accuracy = document["accuracy"]
    assert isinstance(accuracy, dict) and accuracy["verdict"] == "pass"


def test_a_slower_proof_does_not_replace_a_faster_one(tmp_path: Path) -> None:
    first = proven_bf16(tmp_path)
    searched = sum(trial.phase in (Phase.BASELINE, Phase.SEARCH) for trial in first.trials)
    resumed = screened_study(tmp_path, searched + 6, 1.5)
    assert len(groups(resumed.trials)) > len(groups(first.trials)), "a variant had its finals"
    assert resumed.winner == first.winner


def until_the_fourth_round(rate: Callable[[Config], Outcome], stop: threading.Event) -> Callable[[Config], Outcome]:
    runs = Counter[Config]()

    def outcome(config: Config) -> Outcome:
        runs[config] += 1
        if config and runs[config] > 4:
            stop.set()
        return rate(config)

    return outcome


def test_a_proof_stands_where_later_finals_are_stopped(tmp_path: Path) -> None:
    first = Ran(plan(tmp_path, 2), speeds()).result
    stop = threading.Event()
    stopped = Ran(plan(tmp_path, 4), until_the_fourth_round(speeds(lucky=1), stop), stop).result
    assert stopped.interrupted and len(groups(stopped.trials)) == 2
    assert stopped.winner == first.winner
    assert profile(stopped)["config"] == {"precision": "bf16"}


class SlowLearner(ReplayRunner):
    """bf16 is 1.1 times as fast, and learns as from 80% of the samples; workers are 1.05 times as fast, after their
    first run by turns more and less, up to that ``spread``.
    """

    def __init__(self, spread: float) -> None:
        super().__init__(self._outcome_of)
        self._spread = spread
        self._runs = Counter[Config]()

    def _outcome_of(self, config: Config) -> Outcome:
        self._runs[config] += 1
        gain = 1.1 if "precision" in config else 1.05 if "workers" in config else 1.0
        varies = gain == 1.05 and self._runs[config] > 1
        return worlds.measured(100.0 * gain * (1 + self._spread) ** (varies * (-1) ** self._runs[config]), 0.3)

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome = super().run(request, stop)
        if outcome.measurement is None:
            return outcome
        pace = 0.04 if "precision" in request.config else 0.05
        losses = worlds.series(0.5 + 2.0 * 2.718 ** (-pace * step) for step in range(80))
        return replace(outcome, measurement=replace(outcome.measurement, losses=(losses,)))


def slowly_learned(folder: Path, *knobs: str, spread: float = 0.0) -> StudyResult:
    lenient = AccuracyLimits(max_loss_increase=1.0, min_sample_efficiency=0.5)
    study = worlds.plan(folder, trials=8, selection=knobs, accuracy=lenient, finalists=9)
    return run_study(study, SlowLearner(spread), StructuredSampler(), lambda event: None, threading.Event())


def test_what_reaches_a_loss_later_is_not_improved(tmp_path: Path) -> None:
    result = slowly_learned(tmp_path, "precision")
    assert result.winner is not None and result.winner.speedup.low > 1.0
    assert (result.winner.verdict, result.winner.label) == (Verdict.KEEP_BASELINE, LATER)
    said = summary(result, {}, "")
    assert said.startswith("keep your config: what is faster reaches a loss later") and LATER in said
    document = profile(result)
    candidate = document["candidate"]
    assert document["config"] == {} and isinstance(candidate, dict) and candidate["reason"] == LATER


def test_a_slower_candidate_takes_the_place_of_one_that_reaches_a_loss_later(tmp_path: Path) -> None:
    result = slowly_learned(tmp_path, "precision", "workers")
    assert result.improved and result.winner is not None and set(result.winner.config) == {"workers"}


def test_finals_go_on_for_it_though_the_one_that_is_later_is_known_well(tmp_path: Path) -> None:
    """It was proven at the first look, and ended the finals with all time left: nothing was improved by them."""
    result = slowly_learned(tmp_path, "precision", "workers", spread=0.05)
    assert result.improved and result.winner is not None and set(result.winner.config) == {"workers"}
    assert result.winner.runs > 5


def test_a_candidate_that_failed_a_run_of_the_finals_is_none_in_later_ones(tmp_path: Path) -> None:
    """Its first run there runs out of memory, and later ones would not."""
    world, crashes = worlds.World(noise=0.003), [True]

    def outcome(config: Config, in_finals: bool) -> Outcome:
        if in_finals and config == {"workers": 4} and crashes:
            crashes.pop()
            return worlds.infeasible("device-oom")
        return worlds.measured(world.truth(config)[0] * 0.97) if config.get("workers") == 8 else world.outcome(config)

    def study(trials: int) -> StudyResult:
        selection = ("workers",)
        return run_of(worlds.plan(tmp_path, selection=selection, finals_rounds=3, trials=trials), outcome)

    first = study(4)
    assert not crashes and first.winner is not None and first.winner.config != {"workers": 4}
    again = study(4)
    assert (len(again.trials), again.winner) == (len(first.trials), first.winner), "nothing is left to run"
    resumed = study(20)
    assert len(groups(resumed.trials)) == 2
    runs = [t for t in resumed.trials if t.phase is Phase.FINALS and t.config == {"workers": 4}]
    assert len(runs) == 1
    assert resumed.winner is not None and resumed.winner.config != {"workers": 4}


def test_a_proof_falls_where_its_config_fails_in_later_finals(tmp_path: Path) -> None:
    """Neither bf16 nor the lucky config gets through a run of the second finals: those judge nobody."""

    def study(trials: int, outcome_of: Callable[[Config, bool], Outcome]) -> StudyResult:
        return run_of(replace(plan(tmp_path, trials), finalists=2), outcome_of)

    first_speeds, later_speeds = speeds(), speeds(lucky=1)
    first = study(2, lambda config, in_finals: first_speeds(config))
    assert first.winner is not None and first.winner.config == {"precision": "bf16"}
    broken = worlds.infeasible("device-oom")
    resumed = study(4, lambda c, in_finals: broken if c and in_finals else later_speeds(c))
    assert len(groups(resumed.trials)) == 2
    assert resumed.winner is None


def test_finals_that_are_stopped_between_two_looks_prove_nothing_yet(tmp_path: Path) -> None:
    """Each Ctrl-C would be one more look: of 1000 configs like the script as written 28 are proven, not 18."""
    study = replace(plan(tmp_path, 2), finals_rounds=5)
    stop = threading.Event()
    stopped = Ran(study, until_the_fourth_round(speeds(), stop), stop)
    finished = {t.round for t in stopped.result.trials if t.phase is Phase.FINALS and t.config}
    assert stopped.result.interrupted and finished == {1, 2, 3}
    assert stopped.result.winner is None and profile(stopped.result)["verdict"] == "keep-baseline"
    notes = [event.text for event in of(stopped.events, Noted)]
    assert "nothing is proven yet: stopped after 3 of 5 rounds of the finals" in notes
    resumed = Ran(study, speeds()).result
    assert resumed.winner is not None and resumed.winner.verdict is Verdict.IMPROVED and resumed.winner.runs == 5


def test_unfinished_finals_prove_nothing_once_others_take_their_place(tmp_path: Path) -> None:
    stop, runs = threading.Event(), Counter[Config]()

    def until_the_fourth_round(config: Config) -> Outcome:
        runs[config] += 1
        if config and runs[config] > 4:
            stop.set()
        return speeds()(config)

    Ran(plan(tmp_path, 2), until_the_fourth_round, stop)
    # Later it is as fast as the script as written, and another one is lucky.
    fast = speeds(lucky=2)
    resumed = Ran(plan(tmp_path, 4), lambda c: worlds.measured(90.0) if c == {"precision": "bf16"} else fast(c)).result
    assert len(groups(resumed.trials)) == 2
    assert resumed.winner is not None and resumed.winner.verdict is Verdict.KEEP_BASELINE


def test_finals_that_go_on_once_others_were_judged_spend_a_share_of_the_error_of_their_own(tmp_path: Path) -> None:
    """Stopped before they could prove anything, they had spent none; what the others spent is spent."""
    stop, session, runs = threading.Event(), [1], Counter[Config]()

    def outcome(config: Config, in_finals: bool) -> Outcome:
        runs[config] += 1
        if session[0] == 1 and in_finals and runs[config] > 2:
            stop.set()
        if not config and session[0] == 3 and not in_finals:
            return worlds.measured(1e6)  # the machine drifts: what was tried before it was no good
        lucky = "compile" in config and not in_finals and session[0] == 2
        gain = 5.0 if lucky else 1.3 if config == {"precision": "bf16"} else 1.0
        return worlds.measured(100.0 * gain * (1 + 0.05 * (sum(runs.values()) % 3)))

    def study(trials: int) -> StudyResult:
        result = run_of(plan(tmp_path, trials), outcome, stop)
        session[0] += 1
        stop.clear()
        return result

    assert study(2).interrupted
    begun = [finals(tmp_path)]
    for trials in (4, 5):
        result = study(trials)
        begun.append(finals(tmp_path))
    assert len(groups(result.trials)) == 2 and [stored["candidates"] == [1] for stored in begun] == [True, False, True]
    assert [stored["opening"] for stored in begun] == [1, 1, 2]


@pytest.mark.parametrize("killed", [0, 2])
def test_a_winner_of_which_runs_were_killed_is_told_with_that(tmp_path: Path, killed: int) -> None:
    """One that dies now and then, and is run again each time, may die in production, too."""
    speed, left, runs = speeds(), [killed], Counter[Config]()

    def now_and_then(config: Config, in_finals: bool) -> Outcome:
        runs[config] += in_finals
        if in_finals and config and left[0] and runs[config] % 2:
            left[0] -= 1
            return Outcome(OutcomeKind.CRASHED, "signal-kill", "died of SIGKILL", seconds=1.0)
        return speed(config)

    def said() -> str:
        return summary(run_of(plan(tmp_path, 2), now_and_then), {}, "")

    first = said()
    assert "faster: precision=bf16" in first and left == [0]
    assert ("killed from outside in 2 of its 5 runs in the finals" in first) is bool(killed)
    assert said().splitlines()[:2] == first.splitlines()[:2], "derived again from the record"
