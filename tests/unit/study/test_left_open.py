"""Finals of what single trials leave open, where a budget has time that nothing else uses."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.ran import of
from support.turning import studied

from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import Screening
from tuner.model import BASELINE, Config, Phase, Trial, Verdict
from tuner.result import StudyResult
from tuner.search.history import History
from tuner.study.candidates import _say_which_is_first
from tuner.study.context import StudyContext

BF16, FP16 = Config(precision="bf16"), Config(precision="fp16")
RUN_S, LONG_S = 10.0, 3000.0
UNSCREENED = AccuracyLimits(max_loss_increase=None)


def reading(gains: dict[Config, float], read: dict[Config, float]) -> Callable[[Config], float]:
    """What runs say: of the gains, off by 2%; of a config's first run, its trial of the search, what was ``read``."""
    chance, runs = random.Random(1), Counter[Config]()

    def gain_of(config: Config) -> float:
        runs[config] += 1
        if runs[config] <= 2 and config in read:  # each run asks twice: of its rate, and of that by turns
            return read[config]
        return gains.get(config, 1.0) * math.exp(chance.gauss(0, 0.02)) if config else 1.0

    return gain_of


def study(
    folder: Path, gains: dict[Config, float], read: dict[Config, float], *, known_to: float = 1.06, **changes: Any
) -> StudyResult:
    plan: dict[str, Any] = {
        "selection": ("precision",), "trials": 3, "finalists": 2, "accuracy": UNSCREENED, "budget_s": LONG_S, **changes,
    }  # fmt: skip
    result, _ = studied(folder, reading(gains, read), seconds_of=lambda request: RUN_S, known_to=known_to, **plan)
    return result


def met(result: StudyResult) -> set[Config]:
    """The configs that had finals."""
    return {trial.config for trial in result.trials if trial.phase is Phase.FINALS and trial.config}


def test_what_was_read_as_slower_and_may_be_faster_is_proven(tmp_path: Path) -> None:
    result = study(tmp_path, {BF16: 1.05}, {BF16: 0.98, FP16: 0.8})
    assert met(result) == {BF16}
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED and result.winner.config == BF16


def test_a_near_twin_of_what_may_bring_nothing_is_proven(tmp_path: Path) -> None:
    """One that was passed over for another that was read 1% higher, and is no faster than the script as written."""
    result = study(tmp_path, {BF16: 1.0, FP16: 1.05}, {BF16: 1.03, FP16: 1.02}, known_to=1.05)
    assert met(result) == {BF16, FP16}
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED and result.winner.config == FP16


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({"budget_s": None}, {BF16: 0.98, FP16: 0.8}),
        ({"budget_s": 100.0}, {BF16: 0.98, FP16: 0.8}),
        ({}, {BF16: 0.93, FP16: 0.8}),
    ],
    ids=["no budget has the time for it", "less time than five rounds take", "sure to be no faster"],
)
def test_nothing_is_proven_that_was_read_as_slower(
    tmp_path: Path, changes: dict[str, Any], read: dict[Config, float]
) -> None:
    assert met(study(tmp_path, {BF16: 1.05}, read, **changes)) == set()


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({}, {BF16: 1.2, FP16: 1.19}),
        ({"budget_s": 500.0}, {BF16: 1.03, FP16: 1.02}),
        ({"finalists": 1}, {BF16: 1.03, FP16: 1.02}),
    ],
    ids=["a gain for sure", "no time for all rounds of both", "no place for it"],
)
def test_a_near_twin_is_passed_over(tmp_path: Path, changes: dict[str, Any], read: dict[Config, float]) -> None:
    assert met(study(tmp_path, read, read, known_to=1.04, **changes)) == {BF16}


def test_it_has_a_screen_where_it_needs_one(tmp_path: Path) -> None:
    result, events = studied(
        tmp_path, reading({BF16: 1.05}, {BF16: 0.98, FP16: 0.8}), seconds_of=lambda request: RUN_S, known_to=1.06,
        selection=("precision",), trials=3, budget_s=LONG_S,
    )  # fmt: skip
    assert [event.trial.config for event in of(events, Screening)] == [BF16]
    assert [str(screened.verdict) for screened in result.screened] == ["pass"]
    assert met(result) == {BF16}


def test_what_is_derived_again_is_the_same_though_no_time_is_left(tmp_path: Path) -> None:
    first = study(tmp_path, {BF16: 1.0, FP16: 1.05}, {BF16: 1.03, FP16: 1.02}, known_to=1.05)
    again = study(tmp_path, {}, {}, known_to=1.05, budget_s=0.001)
    assert again.trials == first.trials and again.winner == first.winner


def test_who_is_unlikely_to_be_the_fastest_gets_no_more_rounds(tmp_path: Path) -> None:
    """Its rounds' time goes to the other one, whose gain is small beside the noise."""
    gains = {BF16: 1.015, FP16: 0.97}
    result = study(tmp_path, gains, {BF16: 1.08, FP16: 1.04}, known_to=1.02)
    rounds = Counter(trial.config for trial in result.trials if trial.phase is Phase.FINALS)
    assert met(result) == {BF16, FP16} and rounds[BF16] > rounds[FP16] >= 3
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED and result.winner.config == BF16


@pytest.mark.parametrize(
    ("best", "expected", "told"),
    [
        (BASELINE, 1.0, "trial 2 is to be proven although it read no faster than the script as written: by what configs"
                   " like it came to, 1.02x is expected"),
        (FP16, 1.0, "trial 2 comes before trial 1, which read faster: by what configs like them came to, 1.02x and"
                    " 1.00x are expected"),
        (FP16, 1.018, "trial 2 comes before trial 1, which read faster: by what configs like them came to, 1.02x is"
                      " expected of both"),
    ],
    ids=["as written", "another", "as good"],
)  # fmt: skip
def test_what_read_slower_and_is_proven_says_why(best: Config, expected: float, told: str) -> None:
    """'trial 2 comes before trial 0, which read faster': that is the script as written, which nobody proves."""
    read = Trial(1 if best else 0, Phase.SEARCH if best else Phase.BASELINE, best)
    first, notes = Trial(2, Phase.SEARCH, BF16), list[str]()
    study = SimpleNamespace(best=read, rejects=lambda config: False, note=notes.append)
    history = SimpleNamespace(expected=lambda trial: 1.02 if trial is first else expected)
    _say_which_is_first(cast(StudyContext, study), cast(History, history), [first])
    assert notes == [told]
