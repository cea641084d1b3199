"""What screens have rejected steers nothing: the search goes on without it, and what is like it isn't screened."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.learning import AS_WRITTEN, COMPILED, GAINS, Learner, searched, studied
from support.ran import of

from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.stats import Noninferiority
from tuner.events import FinalsStarted, Noted, TrialFinished
from tuner.model import Config, Outcome, OutcomeKind, Phase, Verdict
from tuner.runner.request import TrialRequest


def stands_still(config: Config, seed: int) -> Sequence[float]:
    """With bf16 nothing is learnt."""
    return [2.0] * 60 if config.get("precision") == "bf16" else AS_WRITTEN


def never_learns(fp16: float = GAINS["fp16"]) -> Learner:
    return Learner(stands_still, {**GAINS, "fp16": fp16})


def test_the_search_goes_on_without_what_was_rejected(tmp_path: Path) -> None:
    """The compiler alone was never tried, since bf16 was faster: the study ended with half of its time unused."""
    result, events = studied(tmp_path, never_learns(), budget_s=2000.0)
    assert result.winner is not None and (result.winner.verdict, result.winner.config) == (Verdict.IMPROVED, COMPILED)
    assert searched(result).index(COMPILED) > 1
    last = next(e for e in of(events, TrialFinished) if e.trial.phase is Phase.SEARCH and e.trial.config == COMPILED)
    assert last.best == last.trial, "what was rejected is no longer told as the best so far"
    again, _ = studied(tmp_path, never_learns(), budget_s=2000.0)
    assert (again.winner, again.trials) == (result.winner, result.trials)


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize("fp16", [1.02, 1.2])
def test_what_is_slower_and_provable_does_not_end_the_search_that_a_rejected_config_led(
    tmp_path: Path, fp16: float
) -> None:
    """fp16 had its finals, and the study ended with nine tenths of its time unused: "1.02x, proven". The compiler alone
    was never tried.
    """
    result, events = studied(tmp_path, never_learns(fp16=fp16), budget_s=2000.0)
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    assert result.winner.config.get("compile") == "default" and result.winner.speedup.ratio >= GAINS["default"]
    assert len(of(events, FinalsStarted)) == 1, "the error that is permitted isn't shared out to finals of less"
    [note] = [note.text for note in of(events, Noted) if "the search" in note.text]
    assert note == "what led the search is rejected: the search goes on without it"
    scarce, events = studied(tmp_path / "scarce", never_learns(fp16=fp16), budget_s=205.0)
    assert scarce.winner is not None and scarce.winner.config == Config(precision="fp16"), "there is no time for more"
    assert scarce.winner.verdict is Verdict.IMPROVED and not [n for n in of(events, Noted) if "led" in n.text]


def test_what_is_like_it_is_not_screened(tmp_path: Path) -> None:
    """Each config with bf16 had a screen of its own, six runs each, with the same end."""
    result, events = studied(tmp_path, never_learns())
    faster = [config for config in searched(result) if config.get("precision") == "bf16"]
    assert len(faster) > 1
    [screened] = result.screened
    assert screened.verdict is Noninferiority.FAIL and screened.config in faster
    [note] = [note.text for note in of(events, Noted) if "isn't screened" in note.text]
    assert note.endswith("what it changes beside speed was rejected with other knobs") and "precision=bf16" in note


def test_a_study_that_goes_on_builds_nothing_on_it(tmp_path: Path) -> None:
    """With more trials the search went on from bf16, and tried no config without it."""
    first, _ = studied(tmp_path, never_learns(), trials=4)
    assert first.winner is None and {screened.verdict for screened in first.screened} == {Noninferiority.FAIL}
    again, _ = studied(tmp_path, never_learns(), trials=12)
    tried = searched(again)[len(searched(first)) :]
    assert tried and all(config.get("precision") != "bf16" for config in tried)
    assert again.winner is not None and (again.winner.verdict, again.winner.config) == (Verdict.IMPROVED, COMPILED)


def test_other_bounds_may_let_it_pass(tmp_path: Path) -> None:
    """What was rejected follows from the record and the limits of now."""
    first, _ = studied(tmp_path, never_learns(), trials=4)
    again, _ = studied(tmp_path, never_learns(), trials=4, accuracy=AccuracyLimits(max_loss_increase=None))
    assert first.winner is None and again.winner is not None and again.winner.verdict is Verdict.IMPROVED
    assert again.winner.config.get("precision") == "bf16"


@pytest.mark.slow  # 8 s beside three others
@pytest.mark.parametrize("first_s", [60, pytest.param(75, marks=pytest.mark.slow)])
def test_what_only_lacks_time_is_not_told_to_be_rejected(tmp_path: Path, first_s: int) -> None:
    """Behind a screen that failed, others had no time for theirs: a study with more of it may prove them."""
    for budget_s in range(first_s, 330, 30):
        result, events = studied(tmp_path / str(budget_s), never_learns(fp16=1.5), budget_s=float(budget_s))
        notes = [note.text for note in of(events, Noted)]
        told = [n for n, text in enumerate(notes) if text.startswith("all that was found is rejected")]
        late = [n for n, text in enumerate(notes) if text.startswith("no time left to compare how")]
        assert not (told and late and late[0] < told[0]), budget_s  # what is found afterwards may lack it
        assert len(notes) == len(set(notes)) and result.seconds <= budget_s


def test_nothing_is_told_to_be_rejected_where_nothing_was_found(tmp_path: Path) -> None:
    """There is nothing then that a longer search goes on without."""
    result, events = studied(tmp_path, Learner(stands_still, dict.fromkeys(GAINS, 0.9)))
    assert result.winner is None and not result.screened
    assert not [note.text for note in of(events, Noted) if "the search looks for" in note.text]


class Crashes(Learner):
    """With bf16 nothing but trials of the search works."""

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """In a screen it crashes."""
        if request.seed is not None and request.config.get("precision") == "bf16":
            return Outcome(OutcomeKind.CRASHED, "crash", "boom", seconds=30.0)
        return super().run(request, stop)


def test_what_crashed_with_its_first_seed_stays_rejected(tmp_path: Path) -> None:
    """By the record, however little time a study has that goes on, and with more trials nothing is built on it."""
    first, _ = studied(tmp_path, Crashes(stands_still), trials=4, budget_s=3000.0)
    assert first.winner is None and {(one.verdict, one.seeds) for one in first.screened} == {(Noninferiority.FAIL, 1)}
    late, _ = studied(tmp_path, Crashes(stands_still), trials=4, budget_s=1.0)
    assert late.screened == first.screened and late.trials == first.trials
    again, _ = studied(tmp_path, Crashes(stands_still), trials=12, budget_s=3000.0)
    tried = searched(again)[len(searched(first)) :]
    assert tried and all(config.get("precision") != "bf16" for config in tried)
    assert again.winner is not None and (again.winner.verdict, again.winner.config) == (Verdict.IMPROVED, COMPILED)
