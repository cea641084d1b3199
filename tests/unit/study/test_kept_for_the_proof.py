"""What of a study's time is kept for the proof of what was found: the best, or what is worth nearly as much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import turning, worlds

from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import FinalsStarted
from tuner.model import BASELINE, Config, Outcome, Phase, Trial, Verdict
from tuner.study.budget import Budget
from tuner.study.study_time import HOPE, StudyTime

TIER_1, TIER_2 = Config(workers=2), Config(precision="bf16")
"""The second needs a screen before its finals."""
BUDGET_S = 300.0


def found(left_s: float, gains: dict[Config, float], *, by_turns: bool = True) -> StudyTime:
    """A study that has so many seconds left and has found these gains, by trials of ten seconds."""
    rates = {BASELINE: 1.0, **gains}
    trials = [
        Trial(n, Phase.SEARCH if n else Phase.BASELINE, config, "", _at(100.0 * rate))
        for n, (config, rate) in enumerate(rates.items())
    ]
    plan = worlds.plan(Path("nowhere"), accuracy=AccuracyLimits(), finals_rounds=5, budget_s=BUDGET_S)
    return StudyTime(plan, Budget(None, BUDGET_S, 0.0), BUDGET_S - left_s, trials, worlds.resolved(), by_turns)


def _at(rate: float) -> Outcome:
    return replace(worlds.measured(rate), seconds=10.0)


def test_a_proof_of_a_large_gain_that_may_just_come_off_is_begun_at_once() -> None:
    """What is foreseen before a first round is rather too long. The search used to have it all then, and nothing was
    proven: 3 min 53 s of 5 (studies/digits on two slow cores, November 2026). Its screen takes what it takes.
    """
    time = found(300.0, {TIER_2: 1.5})
    proof_s, finals_s = time.proof_s(TIER_2), time.finals_s(TIER_2, 3)
    least_s = proof_s - (1 - HOPE) * finals_s
    for left_s in (1.01 * proof_s, 0.99 * proof_s, least_s + 1.0):
        assert found(left_s, {TIER_2: 1.5}).search_is_over(), left_s
    late = found(least_s - 1.0, {TIER_2: 1.5})
    assert late.reserved_s() < proof_s and not late.search_is_over(), "none comes off any more"
    assert not late.proof_is_worth_more(1.001), "so no trial is worth less than it"


def test_finals_that_take_a_little_longer_than_foreseen_have_the_time_of_a_search_trial(tmp_path: Path) -> None:
    """Of 320 s 145 were left for what was foreseen to take 141: one round was run, a second and third didn't fit any
    more, and 95 s were left over. A study of 320 s ended unproven, and of 300 and 340 s didn't.
    """
    for budget_s in (300.0, 320.0, 340.0):
        result, _ = turning.studied(
            tmp_path / str(budget_s), lambda config: 1.5 if config.get("precision") == "bf16" else 1.0,
            seconds_of=lambda request: 25.0, budget_s=budget_s, trials=30,
            accuracy=AccuracyLimits(max_loss_increase=None), selection=("workers", "precision", "layout", "compile"),
        )  # fmt: skip
        assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED, budget_s


def test_for_next_to_no_gain_the_search_is_not_ended() -> None:
    """A compiler that is tried third may bring forty percent."""
    proof_s = found(300.0, {TIER_2: 1.004}).proof_s(TIER_2)
    assert not found(0.99 * proof_s, {TIER_2: 1.004}).search_is_over()


def test_a_first_trial_that_compiles_is_not_begun_to_be_cut_off() -> None:
    """Three studies of studies/digits in 5 minutes spent 31 to 45 s of them on one that brought nothing."""
    compiled, short = Config(compile="default"), found(60.0, {})
    slow = replace(_at(100.0), seconds=45.0)
    assert found(299.0, {TIER_1: 1.01}).search_is_over(compiled) == "", "there is the time for it"
    scarce = found(45.0, {TIER_1: 1.01})
    assert scarce.reserved_s() + 10.0 <= 45.0 and scarce.search_is_over(Config(workers=4)) == ""
    late = scarce.search_is_over(Config(compile="default", workers=2))
    assert "with 50 s for a trial of compile=default" in late
    assert scarce.search_is_over(Config(jit_compile=False)) == "", "it compiles nothing"
    known = replace(scarce, trials=[*scarce.trials, Trial(9, Phase.SEARCH, compiled, "", replace(slow, seconds=10.0))])
    assert known.search_is_over(compiled) == "", "what one takes is known"
    assert short.search_is_over(compiled) == "", "nothing else was tried: the user may ask for that alone"


def test_what_is_recorded_of_a_proof_is_not_kept_time_for_again() -> None:
    """Resumed between screens and finals a study foresaw both, gave up on them, and searched until nothing fitted."""
    time = found(70.0, {TIER_2: 1.5})
    screens = [
        Trial(10 + 2 * seed + place, Phase.SCREEN, one, "", _at(100.0), seed=seed, samples=600)
        for seed in (1, 2, 3) for place, one in enumerate((BASELINE, TIER_2))
    ]  # fmt: skip
    resumed = replace(time, trials=[*time.trials, *screens])
    assert resumed.proof_s(TIER_2) == resumed.finals_s(TIER_2, 3) < time.proof_s(TIER_2)
    assert resumed.search_is_over() and not time.search_is_over()
    runs = [Trial(20 + n, Phase.FINALS, TIER_2, "", _at(150.0), n, group=(1,)) for n in (1, 2)]
    begun = replace(resumed, trials=[*resumed.trials, *runs])
    assert begun.proof_s(TIER_2) == begun.finals_s(TIER_2, 1)


@pytest.mark.parametrize(("gain", "is_kept"), [(1.3, True), (1.1, True), (1.005, False)])
def test_time_is_kept_for_what_is_worth_nearly_as_much_where_the_best_has_none(gain: float, is_kept: bool) -> None:
    """The time for a proof of the best won't come back, and what isn't proven is no gain: of 1.65x and 1.1x a study of
    seven minutes proved neither, since its search went on.
    """
    gains = {TIER_2: 1.5, TIER_1: gain}
    finals_s, proof_s = (found(300.0, gains).proof_s(config) for config in (TIER_1, TIER_2))
    left_s = 0.9 * HOPE * proof_s
    assert left_s > finals_s + 10.0, "three rounds of the other one fit"
    time = found(left_s, gains)
    assert (time.reserved_s() >= finals_s) is is_kept


def test_of_the_rounds_that_are_planned_only_as_many_count_against_the_search_as_time_is_kept_for() -> None:
    """Twenty needless rounds would end a search that has just begun."""
    time = found(280.0, {TIER_2: 1.5})
    many = replace(time, plan=replace(time.plan, finals_rounds=27))
    assert many.proof_s(TIER_2, rounds=27) > BUDGET_S
    assert not many.proof_is_worth_more(1.2)


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize(("budget_s", "started"), [(600.0, (1, 17)), (620.0, (2, 21))])
def test_a_second_finalist_needs_the_time_to_tell_the_better_of_both(
    tmp_path: Path, budget_s: float, started: tuple[int, int]
) -> None:
    """By turns a gain is known to 12%, and 21 rounds tell that of the better one, where 17 do for one alone."""
    speeds = {"bf16": 2.0, "fp16": 1.95}
    _, events = turning.studied(
        tmp_path, lambda config: speeds.get(str(config.get("precision")), 1.0), seconds_of=lambda request: 10.0,
        known_to=1.12, finalists=2, budget_s=budget_s, trials=9, accuracy=AccuracyLimits(max_loss_increase=None),
    )  # fmt: skip
    assert [(len(e.candidates), e.rounds) for e in events if isinstance(e, FinalsStarted)] == [started]


@pytest.mark.slow  # 5 s beside three others
@pytest.mark.parametrize(("budget_s", "screened"), [(680.0, 1), (700.0, 2)])
def test_nor_is_it_screened_without_that_time(tmp_path: Path, budget_s: float, screened: int) -> None:
    """Where 17 rounds of all three fit beside its screen, and 21 don't, the screen would be for nothing."""
    speeds = {"bf16": 2.0, "fp16": 1.95}
    result, events = turning.studied(
        tmp_path, lambda config: speeds.get(str(config.get("precision")), 1.0), seconds_of=lambda request: 10.0,
        known_to=1.12, finalists=2, budget_s=budget_s, trials=9, accuracy=AccuracyLimits(samples=1000),
    )  # fmt: skip
    assert len(result.screened) == screened
    assert [len(e.candidates) for e in events if isinstance(e, FinalsStarted)] == [screened]
