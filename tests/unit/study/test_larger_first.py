"""With time for a single proof it goes to a larger batch that is far ahead, where what keeps the batch gains little."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.overhead import Overhead, Studied, studied
from support.ran import of

from tuner.events import FinalsStarted, Noted

HARDLY_FASTER = Overhead(bf16=1.2)
"""By 3% in bf16, and by several times in larger batches."""


def notes(ran: Studied) -> list[str]:
    return [event.text for event in of(ran.events, Noted)]


@pytest.mark.parametrize("budget_s", [180.0, pytest.param(300.0, marks=pytest.mark.slow)])
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


@pytest.mark.slow  # 3 s beside three others
def test_what_keeps_the_batch_has_the_time_that_is_left_after_it(tmp_path: Path) -> None:
    ran = studied(tmp_path, HARDLY_FASTER, budget_s=312.0, trials=30)
    assert any("is proven before" in text for text in notes(ran))
    first, second = (event.candidates[0].config for event in of(ran.events, FinalsStarted))
    assert "lr_scale" in first and second == {"precision": "bf16"}
    assert ran.result.improved and ran.result.larger is not None and ran.result.larger.proven
    assert ran.seconds <= 312.0


@pytest.mark.parametrize("stop_at", [14, pytest.param(None, marks=pytest.mark.slow)])
def test_given_again_it_keeps_that_proof_and_goes_on_with_the_other(tmp_path: Path, stop_at: int | None) -> None:
    """What an earlier process ran took no time of the study's here, so that there is time for both now."""
    first = studied(tmp_path, HARDLY_FASTER, budget_s=180.0, trials=30, stop_at=stop_at)
    again = studied(tmp_path, HARDLY_FASTER, budget_s=180.0, trials=30)
    larger = again.result.larger
    assert larger is not None and larger.proven and again.result.improved
    if stop_at is None:
        assert first.result.larger is not None and larger.winner == first.result.larger.winner
