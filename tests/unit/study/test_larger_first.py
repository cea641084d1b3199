"""With time for a single proof it goes to a larger batch that is far ahead, where what keeps the batch gains little."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.overhead import Overhead, Studied, studied
from support.ran import of

from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import FinalsStarted, Noted
from tuner.study.trials import TrialStore

HARDLY_FASTER = Overhead(bf16=1.2)
"""By 3% in bf16, and by several times in larger batches."""
ALL_DIVERGE = Overhead(bf16=1.6, diverges=32)
LEARNS_TOO_LITTLE = Overhead(bf16=1.6, noise_scale=1.0)
"""The larger batch that is likeliest to reach a loss soonest hardly does."""
SLOW = pytest.mark.slow


def notes(ran: Studied) -> list[str]:
    return [event.text for event in of(ran.events, Noted)]


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What each process of the study took, by the made-up clock; those before count for the one that goes on."""
    seconds = list[float]()
    monkeypatch.setattr(TrialStore, "spent_s", lambda store: sum(seconds))
    return seconds


def within(folder: Path, world: Overhead, budget_s: float, spent: list[float]) -> Studied:
    """The study, begun or gone on with, within that budget of all its processes together."""
    ran = studied(folder, world, budget_s=budget_s, trials=30)
    spent.append(ran.seconds)
    return ran


@pytest.mark.parametrize("budget_s", [180.0, pytest.param(240.0, marks=SLOW)])
def test_a_larger_batch_far_ahead_is_proven_where_there_is_no_time_for_both(tmp_path: Path, budget_s: float) -> None:
    """The time went to 1.03x, and a batch that reached a loss three times as fast stayed a single trial's guess."""
    ran = studied(tmp_path, HARDLY_FASTER, budget_s=budget_s, trials=30)
    result, larger = ran.result, ran.result.larger
    assert larger is not None and larger.proven and larger.sooner is not None and larger.sooner.ratio > 2
    assert not result.improved and result.lacked_time is not None and result.lacked_time.config == {"precision": "bf16"}
    assert result.lacked_time.budget_s > ran.seconds
    assert ran.seconds <= 1.05 * budget_s
    [first] = [text for text in notes(ran) if "is proven before" in text]
    assert "(tier 3) is proven before precision=bf16, which gains little: there is no time for both" in first


@SLOW  # 3 s beside three others
def test_there_is_time_for_both_where_the_script_as_written_is_screened_once(tmp_path: Path) -> None:
    """Its runs were counted for each of the proofs, and the time of one of these was left."""
    ran = studied(tmp_path, HARDLY_FASTER, budget_s=285.0, trials=30)
    first, second = (event.candidates[0].config for event in of(ran.events, FinalsStarted))
    assert first == {"precision": "bf16"} and "lr_scale" in second
    assert ran.result.improved and ran.result.larger is not None and ran.result.larger.proven
    assert ran.seconds <= 285.0
    assert not [text for text in notes(ran) if "is proven before" in text or text.startswith(("no time", "not proven"))]


@pytest.mark.parametrize("stop_at", [14, pytest.param(None, marks=SLOW)])
def test_given_again_it_keeps_that_proof_and_goes_on_with_the_other(tmp_path: Path, stop_at: int | None) -> None:
    """What an earlier process ran took no time of the study's here, so that there is time for both now."""
    first = studied(tmp_path, HARDLY_FASTER, budget_s=180.0, trials=30, stop_at=stop_at)
    again = studied(tmp_path, HARDLY_FASTER, budget_s=200.0, trials=30)
    larger = again.result.larger
    assert larger is not None and larger.proven and again.result.improved
    if stop_at is None:
        assert first.result.larger is not None and larger.winner == first.result.larger.winner


def test_where_nothing_shows_how_they_learn_none_comes_first(tmp_path: Path) -> None:
    """A larger batch that nothing could prove was said to be proven before, and the other to have no time left for its
    finals; it was proven then, by as few rounds as the time was enough for.
    """
    limits = AccuracyLimits(max_loss_increase=None)
    ran = studied(tmp_path, HARDLY_FASTER, budget_s=150.0, trials=30, accuracy=limits)
    assert ran.result.improved and ran.result.winner is not None and ran.result.winner.runs > 3
    assert not [text for text in notes(ran) if "is proven before" in text or text.startswith("not proven")]


@SLOW  # three studies: 4 s beside three others
def test_each_budget_that_is_named_proves_what_it_is_named_for(tmp_path: Path, spent: list[float]) -> None:
    """With the one that was named for what keeps the batch the larger one was proven, and a still larger one named."""
    late = within(tmp_path, HARDLY_FASTER, 60.0, spent).result.lacked_time
    assert late is not None and late.config == {"precision": "bf16"} and late.first["lr_scale"] == 8.0
    second = within(tmp_path, HARDLY_FASTER, late.budget_s, spent)
    assert second.result.larger is not None and second.result.larger.proven and not second.result.improved
    assert second.result.larger.config == late.first
    late = second.result.lacked_time
    assert late is not None and late.first == late.config
    third = within(tmp_path, HARDLY_FASTER, late.budget_s, spent)
    assert third.result.improved and third.result.larger is not None and third.result.larger.proven


def test_the_budget_that_is_named_first_is_that_of_the_larger_batch(tmp_path: Path) -> None:
    ran = studied(tmp_path, HARDLY_FASTER, budget_s=90.0, trials=30)
    late = ran.result.lacked_time
    assert late is not None and late.config == {"precision": "bf16"} and "lr_scale" in late.first
    assert notes(ran)[-1].endswith("(tier 3), before precision=bf16")


def test_a_study_that_is_through_says_nothing_of_who_comes_first(tmp_path: Path, spent: list[float]) -> None:
    """Given again it said that the larger batch is proven before the other: neither had a run left, or time for one."""
    first = within(tmp_path, HARDLY_FASTER, 180.0, spent)
    assert [text for text in notes(first) if "is proven before" in text]
    again = within(tmp_path, HARDLY_FASTER, 180.0, spent)
    assert not again.requests and again.result.larger == first.result.larger
    assert not [text for text in notes(again) if "is proven before" in text] and not of(again.events, FinalsStarted)


def test_what_keeps_the_batch_is_proven_where_larger_ones_fail_their_screens(tmp_path: Path) -> None:
    ran = studied(tmp_path, ALL_DIVERGE, budget_s=240.0, trials=30)
    assert any("is proven before" in text for text in notes(ran))
    assert ran.result.improved and ran.result.larger is not None and not ran.result.larger.proven
    assert not [text for text in notes(ran) if text.startswith(("no time left", "not proven"))], "beside a proof"


def test_what_failed_its_screen_has_no_time_kept_and_no_budget_named(tmp_path: Path, spent: list[float]) -> None:
    """The next larger one was to be proven first, for which another budget was named; and where the study went on, time
    for one that had failed already was kept, and for what keeps the batch none.
    """
    late = within(tmp_path, ALL_DIVERGE, 180.0, spent).result.lacked_time
    assert late is not None and late.first == late.config == {"precision": "bf16"}
    again = within(tmp_path, ALL_DIVERGE, late.budget_s, spent)
    assert again.result.improved and not [text for text in notes(again) if "is proven before" in text]


def test_finals_that_have_no_time_for_their_rounds_are_told_once(tmp_path: Path) -> None:
    """They had a second head without a run, and were noted twice."""
    ran = studied(tmp_path, LEARNS_TOO_LITTLE, budget_s=180.0, trials=30)
    late = [text for text in notes(ran) if text.startswith("not proven: no time left for 3 rounds of the finals of ")]
    assert len(of(ran.events, FinalsStarted)) == len(late) == 1
