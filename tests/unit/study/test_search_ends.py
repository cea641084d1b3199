"""The search ends for the proof once nothing is expected of it, or once the proof is worth more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import overhead, worlds
from support.clocked import Clocked
from support.learning import searched

from search_spaces.torch import SPACE
from tuner.analysis.accuracy import AccuracyLimits
from tuner.knowledge import BOTH
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase, Trial
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.search.additive import AdditiveSampler
from tuner.search.chain import Chain
from tuner.search.history import History, Proposal, Sampler
from tuner.search.structured import StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace
from tuner.study.budget import Budget
from tuner.study.run import run_study
from tuner.study.search import CALM, MANY_FAILURES
from tuner.study.study_time import StudyTime

UNSCREENED = AccuracyLimits(max_loss_increase=None)


def study(folder: Path, sampler: Sampler, **changes: object) -> StudyResult:
    runner = ReplayRunner(worlds.World(noise=0.005).outcome)
    plan = worlds.plan(folder, **{"trials": 80, "patience": None, "accuracy": UNSCREENED, **changes})
    return run_study(plan, runner, sampler, lambda event: None, threading.Event())


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyResult, Path]:
    """A study, and its folder."""
    folder = tmp_path_factory.mktemp("ended")
    return study(folder, Chain(StructuredSampler(), AdditiveSampler(0))), folder


@pytest.mark.slow  # 8 s beside three others
def test_a_search_of_which_nothing_is_expected_ends_for_the_proof(ended: tuple[StudyResult, Path]) -> None:
    result, _ = ended
    assert result.why.startswith("no config left is expected to be 1% faster than the best (1.00")
    assert result.why.endswith("x at most)")
    assert len(searched(result)) < 70
    assert any(trial.phase is Phase.FINALS for trial in result.trials)
    assert result.best is not None
    assert worlds.World().truth(result.best.config)[0] > 0.98 * 1600, "bf16 and four workers, which feed no more"


def test_the_walk_is_never_cut_short(ended: tuple[StudyResult, Path], tmp_path: Path) -> None:
    walk = searched(study(tmp_path, StructuredSampler()))
    both = searched(ended[0])
    assert both[: len(walk)] == walk and len(both) >= len(walk)


def test_it_ends_in_the_same_place_when_the_study_is_given_again(ended: tuple[StudyResult, Path]) -> None:
    first, folder = ended
    again = study(folder, Chain(StructuredSampler(), AdditiveSampler(0)))
    assert again.why == first.why and searched(again) == searched(first)


class Expecting:
    """Proposes numbers of workers, and expects so much of each."""

    def __init__(self, expected: float | None, failing: float | None = None) -> None:
        self._expected, self._failing = expected, failing

    def propose(self, history: History) -> Proposal | None:
        """The first one that wasn't tried."""
        sizes = (Config(workers=w, batch_size=b) for w in (4, 8, 2, 1) for b in (256, 128, 32))
        config = next((config for config in sizes if history.find(config) is None), None)
        return Proposal(config, "made up", self._expected, self._failing) if config is not None else None


@pytest.mark.parametrize(("expected", "ends"), [(1.002, True), (1.02, False), (None, False)])
def test_only_a_forecast_below_what_is_worth_having_ends_it(
    tmp_path: Path, expected: float | None, ends: bool
) -> None:
    result = study(tmp_path, Expecting(expected))
    assert result.why.startswith("no config left is expected") is ends
    assert len(searched(result)) > CALM and (len(searched(result)) < 12) is ends


def test_what_is_left_out_since_its_values_failed_is_named_when_it_ends(tmp_path: Path) -> None:
    why = study(tmp_path, Expecting(1.002, 1.1)).why
    assert why.endswith("than the best (1.002x at most), but for values that failed before (1.100x at most)")


def time_left(seconds: float) -> StudyTime:
    """Of a study that has found a gain of a half, by trials of ten seconds."""
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", worlds.measured(100.0))]
    trials += [Trial(1, Phase.SEARCH, Config(workers=2), "", worlds.measured(150.0))]
    plan = worlds.plan(Path("nowhere"), accuracy=UNSCREENED, finals_rounds=5)
    return StudyTime(plan, Budget(None, 1000.0, 0.0), 1000.0 - seconds, trials, worlds.resolved())


def test_scarce_time_goes_to_what_brings_more_a_second() -> None:
    """Five rounds of two runs of ten seconds prove a gain of a half: 0.4% a second, and half as many may be added."""
    assert time_left(140.0).proof_is_worth_more(1.03)
    assert not time_left(140.0).proof_is_worth_more(1.06), "0.6% a second"
    assert not time_left(170.0).proof_is_worth_more(1.001), "there is time for both"


def test_the_speed_of_a_larger_batch_ends_no_search_of_what_keeps_it() -> None:
    """2% found, and a larger batch at 2.5x: what the search may still gain is worth more than proving the 2%."""
    space = space_with_larger()
    larger = space.with_larger(BASELINE, space.larger.values[space.larger.as_written + 1])  # type: ignore[union-attr]
    outcomes = {BASELINE: 100.0, Config(precision="bf16"): 102.0, larger: 250.0}
    trials = [
        Trial(n, Phase.SEARCH if n else Phase.BASELINE, config, "", worlds.measured(rate))
        for n, (config, rate) in enumerate(outcomes.items())
    ]
    found = replace(time_left(140.0), trials=trials, space=space)
    for expected in (1.01, 1.03, 1.09):
        without = replace(found, trials=trials[:2])
        assert found.proof_is_worth_more(expected) is without.proof_is_worth_more(expected) is False


def test_time_is_kept_for_a_larger_batch_that_is_likely_to_reach_a_loss_sooner() -> None:
    """Twice the batch learns nine tenths from each sample, as long as nobody knows."""
    space = space_with_larger()
    larger = space.with_larger(BASELINE, space.larger.values[space.larger.as_written + 1])  # type: ignore[union-attr]

    def kept_s(rate: float) -> float:
        of = ((BASELINE, 100.0), (Config(precision="bf16"), 200.0), (larger, rate))
        trials = [
            Trial(n, Phase.SEARCH if n else Phase.BASELINE, config, "", worlds.measured(each))
            for n, (config, each) in enumerate(of)
        ]
        time = time_left(900.0)
        plan, budget = replace(time.plan, accuracy=accuracy), replace(time.budget, finals_share=0.0)
        return replace(time, plan=plan, trials=trials, space=space, budget=budget).reserved_s()

    accuracy = AccuracyLimits()
    assert kept_s(210.0) == kept_s(150.0) < kept_s(240.0)
    accuracy = UNSCREENED  # how it learns has to be seen for its proof
    assert kept_s(210.0) == kept_s(240.0)


LATE = Outcome(OutcomeKind.UNFINISHED, "out-of-time", "the study had no more time for it", seconds=1.0)


def late_at_first(late: int) -> Callable[[Config], Outcome]:
    """So many runs of other configs than the script's own are cut off by the study's time; the next ones aren't."""
    left = [late]

    def outcome(config: Config) -> Outcome:
        left[0] -= bool(config)
        return LATE if config and left[0] >= 0 else worlds.measured(100.0 if not config else 95.0)

    return outcome


def test_what_there_was_no_time_for_has_not_failed_and_is_none_of_the_trials(tmp_path: Path) -> None:
    """``--trials 12`` came to as many fewer in a study that was resumed with more time."""
    runner = ReplayRunner(late_at_first(MANY_FAILURES + 1))
    plan = worlds.plan(tmp_path, accuracy=UNSCREENED, trials=4)
    result = run_study(plan, runner, TpeSampler(0), lambda event: None, threading.Event())
    assert result.why == "all 4 trials are done"
    done = [trial for trial in result.trials if trial.phase in (Phase.BASELINE, Phase.SEARCH)]
    assert sum(trial.measurement is not None for trial in done) == 4


def test_what_is_pinned_and_had_no_time_is_tried_once_there_is_some(tmp_path: Path) -> None:
    """The same command with a larger budget ended at once: "what is pinned does not work here", for want of time."""
    pinned, late = Config(precision="bf16"), [replace(LATE, seconds=45.0)]

    def outcome(config: Config) -> Outcome:
        return late.pop() if config and late else worlds.measured(200.0 if config else 100.0)

    def once(budget_s: float) -> StudyResult:
        runner = Clocked(outcome)
        plan = worlds.plan(
            tmp_path, accuracy=UNSCREENED, pinned=pinned, selection=("precision",), budget_s=budget_s, finals_rounds=5
        )
        return run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event(), clock=runner.clock)

    assert "searching is too short for another trial" in once(60.0).why and not late
    result = once(1000.0)
    assert result.improved and result.winner is not None and result.winner.config == pinned


def space_with_larger() -> ResolvedSpace:
    knowledge = replace(overhead.KNOWN, effective_batch=BOTH)
    return resolve(SPACE, Known(worlds.DEVICE, 4, knowledge=knowledge), selection=("batch_size", "precision"))


def test_where_nothing_is_found_there_is_nothing_to_prove() -> None:
    time = time_left(140.0)
    assert not replace(time, trials=time.trials[:1]).proof_is_worth_more(1.001)
    assert not replace(time, budget=replace(time.budget, seconds=None)).proof_is_worth_more(1.001)
