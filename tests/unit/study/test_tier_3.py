"""Two contests in one study: what keeps the effective batch, and larger ones beside it, judged by time to a loss."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support import overhead, worlds
from support.overhead import Overhead, Studied, plan, studied
from support.ran import of

from search_spaces.torch import SPACE
from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.stats import Noninferiority
from tuner.cli import main
from tuner.errors import StudyMismatchError
from tuner.events import FinalsStarted, SpaceResolved, StudyStarted, TrialFinished
from tuner.export import PROFILE
from tuner.export import profile as profiles
from tuner.knowledge import BOTH
from tuner.model import Config, Outcome, Phase, Trial, Value, Verdict
from tuner.objective import Objective
from tuner.report.summary import summary
from tuner.result import LargerBatch
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.storage.database import Repository
from tuner.study.budget import Budget
from tuner.study.lengths import FEWEST_LARGER_STEPS
from tuner.study.run import run_study
from tuner.study.study_time import StudyTime

CHEAP_STEPS = Overhead(step_s=0.0002, sample_s=0.0005, bf16=2.0)
"""Nothing to gain by larger batches, and much by bf16."""
BOTH_WAYS = Overhead(step_s=0.01, sample_s=0.0004, bf16=2.0)


SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def overhead_bound(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    """A whole study, for all tests that only read it."""
    return studied(tmp_path_factory.mktemp("overhead"), Overhead())


@pytest.fixture(scope="module")
def both_ways(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    """One in which a config gains that keeps the batch, too."""
    return studied(tmp_path_factory.mktemp("both"), BOTH_WAYS)


def folder_of(ran: Studied) -> Path:
    return Path(ran.result.study.folder)


def larger_of(ran: Studied) -> LargerBatch:
    assert ran.result.larger is not None
    return ran.result.larger


def openings(folder: Path) -> dict[str, int]:
    """The opening of each contest's present finals."""
    repository = Repository(f"sqlite:///{folder / 'study.db'}")
    stored = repository.finals(repository.studies()[0].id)
    repository.close()
    found = {"larger": stored["larger"]["opening"]} if "larger" in stored else {}
    return {**found, **({"keeping": stored["opening"]} if "opening" in stored else {})}


def best_so_far(resumed: Studied) -> Trial | None:
    """What a resumed study tells at its start as the best one: of those that keep the effective batch."""
    [started] = [event for event in resumed.events if isinstance(event, StudyStarted)]
    return started.earlier[-1].best


def test_a_fixed_cost_of_each_step_is_a_proven_larger_batch_by_default(overhead_bound: Studied) -> None:
    """The headline: nothing that keeps the batch helps, and the study says what does."""
    world, ran = Overhead(), overhead_bound
    larger = larger_of(ran)
    assert not ran.result.improved and larger.proven and not larger.why
    truth = {size: world.rate(c) / world.rate({}) * world.efficiency(c) for size in (64, 128, 256, 512)
             for c in [Config(batch_size=size)]}  # fmt: skip
    chosen = int(larger.config["batch_size"])
    assert truth[chosen] == max(truth.values()), "by the time to a loss, and not by throughput"
    assert larger.config["lr_scale"] == chosen / 32
    assert larger.sooner is not None and larger.sooner.low <= truth[chosen] <= larger.sooner.high
    assert larger.winner is not None and larger.winner.speedup.ratio == pytest.approx(
        world.rate(larger.config) / world.rate({}), rel=0.02
    )
    told = summary(ran.result, {"result": "best.json"}, "best.json")
    assert told.startswith("keep your config, or take larger batches (tier 3): ")
    assert "apply tier 3  autotune run --config best.json --tier 3 train.py" in told


def test_the_winner_keeps_the_effective_batch_however_fast_a_larger_one_is(both_ways: Studied) -> None:
    ran = both_ways
    winner, larger = ran.result.winner, larger_of(ran)
    assert winner is not None and ran.result.improved and winner.config == {"precision": "bf16"}
    assert larger.proven and larger.config["precision"] == "bf16" and larger.sooner is not None
    assert larger.sooner.ratio > winner.speedup.ratio
    assert ran.result.best is not None and ran.result.best.config == winner.config
    best = [event.best.config for event in of(ran.events, TrialFinished) if event.best is not None]
    assert all("lr_scale" not in config for config in best), "nor is one told as the best so far"
    first, second = ([trial.config for trial in event.candidates] for event in of(ran.events, FinalsStarted))
    assert all("lr_scale" not in config for config in first) and second == [larger.config]
    (resolved,) = of(ran.events, SpaceResolved)
    assert resolved.values["batch_size"] == (4, 8, 16, 32, 64, 128, 256, 512)


def test_both_contests_share_the_permitted_error(both_ways: Studied, overhead_bound: Studied) -> None:
    assert openings(folder_of(both_ways)) == {"keeping": 1, "larger": 2}
    assert openings(folder_of(overhead_bound)) == {"larger": 1}


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize("mode", ["keep", "free"])
def test_keep_and_free_have_one_contest(tmp_path: Path, mode: str) -> None:
    ran = studied(tmp_path, Overhead(step_s=0.1), effective_batch=mode)
    assert ran.result.larger is None and ran.result.no_larger == ""
    assert (max(ran.steps) > 32) is (mode == "free")
    screened = [(each.window.until_samples, Overhead().step_of(each.config)) for each in ran.requests]
    assert all(samples >= FEWEST_LARGER_STEPS * step for samples, step in screened if samples and step > 32)
    assert "tier 3, changes" not in summary(ran.result, {}, "")


def test_what_learns_too_little_for_its_speed_is_told_and_not_proven(tmp_path: Path) -> None:
    ran = studied(tmp_path, Overhead(step_s=0.001, noise_scale=1.0))
    larger = larger_of(ran)
    assert not larger.proven and larger.winner is None and "learns too little" in larger.why
    assert larger.efficiency is not None and larger.gain * larger.efficiency.ratio < 1
    assert not [trial for trial in ran.result.trials if trial.phase is Phase.FINALS]


def test_a_loss_that_is_no_number_any_more_fails(tmp_path: Path) -> None:
    """One batch diverges: a smaller one is taken."""
    ran = studied(tmp_path, Overhead(diverges=128))
    failed = [one for one in ran.result.screened if one.verdict is Noninferiority.FAIL]
    assert failed and all(int(one.config["batch_size"]) > 128 for one in failed)
    larger = larger_of(ran)
    assert not larger.proven or int(larger.config["batch_size"]) <= 128


def test_a_bound_of_the_users_own_metric_holds_for_larger_batches(tmp_path: Path) -> None:
    """Losses may be learned more slowly there; what the user bounds may not."""
    limits = AccuracyLimits(max_metric_drop={"accuracy": 0.01})
    ran = studied(tmp_path, Overhead(), accuracy=limits)
    larger = larger_of(ran)
    assert not larger.proven and larger.winner is None
    assert any(check.name == "accuracy" for one in ran.result.screened for check in one.checks)


def test_without_a_comparison_of_learning_nothing_is_proven_of_them(tmp_path: Path) -> None:
    ran = studied(tmp_path, Overhead(), accuracy=AccuracyLimits(max_loss_increase=None))
    larger = larger_of(ran)
    assert not larger.proven and "--max-loss-increase off" in larger.why and larger.gain > 2


def test_a_study_without_time_for_one_says_so(tmp_path: Path) -> None:
    ran = studied(tmp_path, Overhead(), budget_s=25.0, trials=4)
    assert ran.result.larger is None and ran.result.no_larger == "the search ended before it tried one"
    assert "not known: the search ended before it tried one" in summary(ran.result, {}, "")


@pytest.mark.parametrize(("rough", "why"), [(0.15, "for 3 rounds of its finals"), (0.6, "to compare how it learns")])
def test_what_lacks_only_time_is_not_told_as_without_a_figure_or_as_untold(
    tmp_path: Path, rough: float, why: str
) -> None:
    """One round of its finals was run, the third of which had no time; or no screen long enough to tell had any."""
    larger = larger_of(studied(tmp_path, Overhead(rough=rough), budget_s=140.0, trials=8))
    assert not larger.proven and larger.why.startswith(f"no time left {why}") and "larger --budget" in larger.why


@pytest.mark.parametrize(
    "budget_s",
    [180.0, 300.0, *(pytest.param(each, marks=SLOW) for each in (60.0, 90.0, 120.0, 240.0, 360.0, 480.0))],
)
def test_within_any_budget_what_is_found_is_proven_or_named_with_its_gain(tmp_path: Path, budget_s: float) -> None:
    ran = studied(tmp_path, Overhead(), budget_s=budget_s, trials=30)
    assert ran.seconds <= 1.1 * budget_s
    larger = larger_of(ran)
    if not larger.proven:
        assert larger.winner is None and larger.why.startswith("no time left"), larger.why
        assert "x the speed in a single trial" in summary(ran.result, {}, "")
    assert larger.proven is (budget_s >= 180.0)


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize(
    "budget_s", [180.0, 400.0, *(pytest.param(seconds, marks=SLOW) for seconds in (240.0, 300.0, 600.0, 900.0))]
)
def test_a_larger_batch_takes_no_proof_from_what_keeps_it(tmp_path: Path, budget_s: float) -> None:
    """Each study proves what one proves that knows of no larger batches."""
    kept = studied(tmp_path / "kept", BOTH_WAYS, budget_s=budget_s, trials=30, effective_batch="keep")
    both = studied(tmp_path / "both", BOTH_WAYS, budget_s=budget_s, trials=30)
    assert both.seconds <= 1.1 * budget_s
    assert kept.result.improved == both.result.improved
    if both.result.winner is not None and kept.result.winner is not None:
        assert both.result.winner.config == kept.result.winner.config
    larger = both.result.larger
    if budget_s == 300.0:  # about what both proofs take
        assert larger is not None and (larger.proven or larger.why.startswith("no time left"))
    else:
        assert (larger is not None and larger.proven) is (budget_s > 300.0)


def test_a_larger_batch_that_brings_no_more_than_the_winner_is_not_proven(tmp_path: Path) -> None:
    ran = studied(tmp_path, CHEAP_STEPS)
    assert ran.result.improved
    larger = ran.result.larger
    assert larger is None or (not larger.proven and "sooner than what keeps" in larger.why)


def test_the_same_command_derives_the_same_result_and_runs_nothing(tmp_path: Path) -> None:
    first = studied(tmp_path, BOTH_WAYS)
    again = studied(tmp_path, BOTH_WAYS)
    assert again.requests == []
    assert again.result.larger == first.result.larger and again.result.winner == first.result.winner
    assert again.result.screened == first.result.screened and again.result.bests == first.result.bests


@pytest.mark.parametrize(
    "stop_at", [20, *(pytest.param(number, marks=SLOW) for number in (3, 9, 13, 16, 24, 28, 31))]
)
def test_one_that_was_stopped_anywhere_goes_on_to_the_same_result(
    tmp_path: Path, both_ways: Studied, stop_at: int
) -> None:
    stopped = studied(tmp_path / "stopped", BOTH_WAYS, stop_at=stop_at)
    assert stopped.result.interrupted
    assert not (stopped.result.larger is not None and stopped.result.larger.proven)
    resumed = studied(tmp_path / "stopped", BOTH_WAYS)
    assert best_so_far(resumed) == [event.best for event in stopped.events if isinstance(event, TrialFinished)][-1]
    assert resumed.result.winner is not None and both_ways.result.winner is not None
    assert resumed.result.winner.config == both_ways.result.winner.config
    assert larger_of(resumed).config == larger_of(both_ways).config and larger_of(resumed).proven


@pytest.mark.slow  # 2 s beside three others
def test_what_was_proven_of_a_larger_batch_stands(tmp_path: Path) -> None:
    """Also where the same command, with more to search, is stopped; and one that is sooner still takes its place."""
    first = studied(tmp_path, Overhead(), trials=5)
    assert larger_of(first).proven and larger_of(first).config["batch_size"] == 128
    stopped = studied(tmp_path, Overhead(), trials=8, stop_at=2)
    assert stopped.result.interrupted and larger_of(stopped).proven
    assert larger_of(stopped).sooner == larger_of(first).sooner
    assert any(one.config == larger_of(first).config for one in stopped.result.screened)
    whole = studied(tmp_path, Overhead(), trials=8)
    assert larger_of(whole).proven and larger_of(whole).config["batch_size"] == 256
    assert openings(tmp_path)["larger"] == 2


@pytest.mark.slow  # 3 s beside three others
def test_a_study_that_kept_the_batch_goes_on_with_larger_ones(tmp_path: Path) -> None:
    """As earlier versions did, by the same command."""
    kept = studied(tmp_path, BOTH_WAYS, effective_batch="keep")
    assert max(kept.steps) == 32 and kept.result.larger is None
    both = studied(tmp_path, BOTH_WAYS)
    assert larger_of(both).proven and both.result.winner is not None and kept.result.winner is not None
    assert both.result.winner.config == kept.result.winner.config
    back = studied(tmp_path, BOTH_WAYS, effective_batch="keep")
    assert back.requests == [] and back.result.larger is None
    assert back.result.winner is not None and back.result.winner.config == kept.result.winner.config
    with pytest.raises(StudyMismatchError, match="effective_batch"):
        studied(tmp_path, BOTH_WAYS, effective_batch="free")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"unit": "steps"}, "steps are counted"), ({"loss_reduction": "sum"}, "the loss is a sum"),
        ({"acts_by_batch": "Ema"}, "Ema acts with every batch"), ({"dataset_len": 40}, "no larger batch fits"),
        ({"acts_by_batch": "Ema", "as_written": {**overhead.KNOWN.as_written, "steps_per_execution": 10}},
         "Ema acts every 10 batches"),
        ({"left_out": {"batch_size": "a loader of its own"}}, "a loader of its own"),
    ],
)  # fmt: skip
def test_where_none_can_be_tried_the_reason_is_told(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    world = Overhead(knowledge=replace(overhead.KNOWN, **changes))
    ran = studied(tmp_path, world, accuracy=AccuracyLimits(max_loss_increase=None))
    assert ran.result.larger is None and ran.result.no_larger.startswith(why)
    assert f"  not known: {why}" in summary(ran.result, {}, "")
    assert max(ran.steps, default=32) == 32


@dataclass(frozen=True)
class SlowerAndCheaper(Overhead):
    """Larger batches take longer, and less of the processor."""

    def rate(self, config: Mapping[str, Value]) -> float:
        return 1000.0 / math.pow(self.step_of(config) / 32, 0.1)

    def outcome(self, config: Config, chance: random.Random, samples: float) -> Outcome:
        outcome = super().outcome(config, chance, samples)
        assert outcome.measurement is not None
        cheaper = 0.001 * (self.step_of(config) / 32) ** -0.6 * (0.5 if "precision" in config else 1.0)
        return replace(outcome, measurement=replace(outcome.measurement, cpu_s_per_sample=cheaper))


CPU_TIME = Objective("CPU time", "s/sample", False, lambda measurement: measurement.cpu_s_per_sample or math.nan)


def test_what_costs_less_is_not_said_to_reach_a_loss_sooner(tmp_path: Path) -> None:
    """An objective that is no rate says nothing of the time to a loss, whatever the screen shows."""
    ran = studied(tmp_path, SlowerAndCheaper(bf16=2.0), objective=CPU_TIME)
    why = "CPU time is no rate: it doesn't say how soon a loss is reached"
    assert ran.result.larger is None and ran.result.no_larger == why
    text = summary(ran.result, {}, "")
    assert text.startswith("better: precision=bf16\n2.00x as good by CPU time, ")
    assert "the same loss" not in text and "the speed" not in text and "faster" not in text


@pytest.mark.parametrize(
    ("world", "why"),
    [(Overhead(fits=32), "none could be measured; batch_size=64 lr_scale=2.0: "),
     (Overhead(step_s=0.0), "none was faster than the script as written")],
)  # fmt: skip
def test_what_could_not_be_measured_is_not_said_to_be_no_faster(tmp_path: Path, world: Overhead, why: str) -> None:
    ran = studied(tmp_path, world)
    assert ran.result.larger is None and ran.result.no_larger.startswith(why), ran.result.no_larger
    assert ran.result.no_larger != "none could be measured; batch_size=64 lr_scale=2.0: "


@dataclass(frozen=True)
class Bf16FailsItsScreen(Overhead):
    """bf16 computes twice as fast and learns as from 60% of the samples; larger batches bring more than that."""

    def efficiency(self, config: Mapping[str, Value]) -> float:
        return super().efficiency(config) * (0.6 if config.get("precision") == "bf16" else 1.0)


def test_what_failed_its_screen_is_no_bar_for_larger_batches(tmp_path: Path) -> None:
    ran = studied(tmp_path, Bf16FailsItsScreen(step_s=0.012, sample_s=0.0004, bf16=3.0, noise_scale=64.0))
    assert not ran.result.improved
    assert larger_of(ran).proven, larger_of(ran).why


def test_batch_norm_minds_smaller_batches_only(tmp_path: Path) -> None:
    ran = studied(tmp_path, Overhead(knowledge=replace(overhead.KNOWN, batch_norm=True)))
    assert larger_of(ran).proven
    assert "BatchNorm" in ran.result.left_out["batch_size"].reason and min(ran.steps) == 32


def test_the_search_keeps_time_to_prove_a_larger_batch(tmp_path: Path, overhead_bound: Studied) -> None:
    trials = [trial for trial in overhead_bound.result.trials if trial.phase in (Phase.BASELINE, Phase.SEARCH)]
    known = Known(worlds.DEVICE, 8, knowledge=replace(overhead.KNOWN, effective_batch=BOTH))
    space = resolve(SPACE, known, selection=("batch_size", "precision"))
    budget = Budget(None, 10_000.0, 0.0, finals_share=0.0)
    with_larger = StudyTime(plan(tmp_path), budget, 0.0, trials, space)
    kept = [trial for trial in trials if space.keeps_batch(trial.config)]
    without = StudyTime(plan(tmp_path), budget, 0.0, kept, space)
    best = max(trials, key=lambda trial: overhead.Overhead().rate(trial.config))
    assert with_larger.reserved_s() >= with_larger.proof_s(best.config) > 0
    assert with_larger.reserved_s() != without.reserved_s()


def test_the_profile_holds_both(both_ways: Studied) -> None:
    content = PROFILE.serialize(both_ways.result, None)
    assert content is not None
    (profile,) = profiles.read(content, "best.json")
    assert profile.config == {"precision": "bf16"} and profile.verdict is Verdict.IMPROVED
    assert profile.tier3 is not None and profile.tier3.config == larger_of(both_ways).config
    third = profiles.of_tier_3(profile, "best.json")
    assert third.config == larger_of(both_ways).config and third.knowledge == profile.knowledge


def test_the_waterfall_shows_what_keeps_the_effective_batch(
    both_ways: Studied, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(folder_of(both_ways))
    assert main(["trials", folder, "--waterfall", "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)
    assert [change["turned"] for change in changes] == [{}, {"precision": "bf16"}]
    assert main(["trials", folder, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["why"] for one in listed if one["phase"] == "search" and "lr_scale" in one["config"]]


def test_a_space_without_larger_batches_has_no_such_contest(tmp_path: Path) -> None:
    """One of a third party's, as before: another batch is a config like any other."""
    events: list[Any] = []
    runner = ReplayRunner(lambda config: worlds.measured(100.0 * int(config.get("batch_size", 64)) / 64))
    result = run_study(
        worlds.plan(tmp_path, trials=6, selection=("batch_size",), accuracy=AccuracyLimits(max_loss_increase=None)),
        runner, StructuredSampler(), events.append, threading.Event(),
    )  # fmt: skip
    assert result.larger is None and result.improved and result.winner is not None
    assert result.winner.config == {"batch_size": 512}
