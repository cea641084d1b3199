"""The budget that a study names for want of time: the same command with it proves what was named, or none is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.ran import of
from support.turning import studied

from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import Noted
from tuner.formatting import config_text
from tuner.model import Config, Phase, Verdict
from tuner.report.summary import summary
from tuner.result import StudyResult
from tuner.runner.request import TrialRequest

FP16, BF16 = Config(workers=2, precision="fp16"), Config(workers=2, precision="bf16")
UNSCREENED = AccuracyLimits(max_loss_increase=None)


def gains(bf16: float, config: Config) -> float:
    """With fp16 the script is half as fast again; ``bf16`` says what the other format makes of it."""
    return {Config(): 1.0, Config(workers=2): 1.15, FP16: 1.5, BF16: bf16}.get(config, 0.9)


def within(folder: Path, budget_s: float, bf16: float, slow_finals: float = 10.0) -> tuple[StudyResult, str]:
    """The study, whose runs of bf16 take a minute, and what it says of a budget."""

    def seconds_of(request: TrialRequest) -> float:
        if request.config == BF16:
            return 60.0
        return slow_finals if request.config == FP16 and request.fresh else 10.0

    result, events = studied(
        folder, lambda config: gains(bf16, config), seconds_of=seconds_of, budget_s=budget_s, trials=6,
        accuracy=UNSCREENED,
    )  # fmt: skip
    return result, next((note.text for note in of(events, Noted) if "--budget" in note.text), "")


def budget_of(note: str) -> float:
    found = re.search(r"with --budget (\d+)m ", note)
    assert found is not None, note
    return 60.0 * int(found[1])


@pytest.mark.slow  # 6 s beside three others
@pytest.mark.parametrize(("bf16", "is_named"), [(1.508, False), (1.6, True)])
def test_what_is_worth_no_more_than_what_was_judged_is_promised_no_proof(
    tmp_path: Path, bf16: float, is_named: bool
) -> None:
    """The same command with the budget that was named ran nothing, said the same, and named a budget again."""
    result, note = within(tmp_path, 5 * 10.0 + 60.0 + 100.0, bf16)
    assert {FP16, BF16} <= {trial.config for trial in result.trials}
    assert result.winner is not None and (result.winner.config, result.winner.verdict) == (FP16, Verdict.IMPROVED)
    assert bool(note) is is_named is (result.lacked_time is not None)
    if is_named:
        again, note = within(tmp_path, budget_of(note), bf16)
        assert again.winner is not None and (again.winner.config, again.winner.verdict) == (BF16, Verdict.IMPROVED)
        assert not note and again.lacked_time is None


def test_finals_that_had_no_time_for_three_rounds_are_named_before_what_comes_after_them(tmp_path: Path) -> None:
    """Their runs took thrice as long as foreseen. The same command goes on with them: what was named for its budget was
    the one that had given way to them.
    """
    result, note = within(tmp_path, 5 * 10.0 + 60.0 + 70.0, 1.6, slow_finals=30.0)
    finals = [trial for trial in result.trials if trial.phase is Phase.FINALS and trial.config]
    assert {trial.config for trial in finals} == {FP16} and len(finals) < 3
    assert note.endswith(f"the time to prove {config_text(FP16)}, before {config_text(BF16)}")
    late = result.lacked_time
    assert late is not None and (late.config, late.first) == (BF16, FP16)
    assert f"which has the time to prove {config_text(FP16)}" in summary(result, {}, "")
    again, note = within(tmp_path, budget_of(note), 1.6, slow_finals=30.0)
    assert again.winner is not None and (again.winner.config, again.winner.verdict) == (FP16, Verdict.IMPROVED)
    last, _ = within(tmp_path, budget_of(note), 1.6, slow_finals=30.0)
    assert last.winner is not None and (last.winner.config, last.winner.verdict) == (BF16, Verdict.IMPROVED)


@pytest.mark.parametrize(("read", "is_named"), [(1.004, False), (1.05, True)])
def test_no_budget_is_named_for_what_is_not_worth_having(tmp_path: Path, read: float, is_named: bool) -> None:
    """Eight minutes more for the proof of 1.004x: nobody changes a config for that."""
    result, events = studied(
        tmp_path, lambda config: {Config(): 1.0, Config(workers=2): read}.get(config, 0.9),
        seconds_of=lambda request: 40.0 if request.fresh else 10.0, budget_s=100.0, trials=3, selection=("workers",),
    )  # fmt: skip
    assert result.best is not None and result.best.config == Config(workers=2)
    assert not [trial for trial in result.trials if trial.phase is Phase.FINALS and trial.config]
    notes = [note.text for note in of(events, Noted) if "--budget" in note.text]
    assert bool(notes) is is_named is (result.lacked_time is not None)
