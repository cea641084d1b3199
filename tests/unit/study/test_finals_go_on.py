"""Finals that have begun go on where others are hardly faster: new ones cost rounds, and a share of the error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.life_of_finals import finals, groups, plan
from support.ran import Ran

from tuner.analysis.tiers import Tiers
from tuner.knowledge import Knowledge
from tuner.model import Config, Outcome, Phase, Trial
from tuner.search.history import History
from tuner.search.proven_first import candidates_of
from tuner.study.plan import StudyPlan


def test_the_same_candidates_in_another_order_are_no_new_finals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is searched later moves what is expected of earlier trials."""

    def both_gain(config: Config) -> Outcome:
        gains = {Config(): 1.0, Config(precision="bf16"): 2.0, Config(precision="fp16"): 1.9}
        return worlds.measured(100.0 * gains.get(config, 0.9))

    def two(trials: int) -> StudyPlan:
        return replace(plan(tmp_path, trials), finalists=2)

    first = Ran(two(4), both_gain).result
    (began,) = groups(first.trials)
    assert len(began) == 2
    ordered = History.by_expectation

    def swapped(history: History, trials: Iterable[Trial]) -> list[Trial]:
        fastest, second, *others = ordered(history, trials)
        return [second, fastest, *others]

    monkeypatch.setattr(History, "by_expectation", swapped)
    again = Ran(two(5), both_gain).result
    assert len(again.trials) > len(first.trials)
    assert {frozenset(group) for group in groups(again.trials)} == {frozenset(began)}
    assert finals(tmp_path)["opening"] == 1


def test_finals_go_on_where_nothing_much_faster_has_been_found_since(tmp_path: Path) -> None:
    """A place that changes hands by less than a gain worth having would cost all rounds that were run."""

    def outcome_with(layout: float) -> Callable[[Config], Outcome]:
        gains = {Config(): 1.0, Config(precision="bf16"): 2.0, Config(precision="fp16"): 1.9}
        later = Config(precision="bf16", compile="max")
        return lambda config: worlds.measured(100.0 * (layout if config == later else gains.get(config, 0.9)))

    first = Ran(plan(tmp_path / "near", 2), outcome_with(0.9)).result
    near = Ran(plan(tmp_path / "near", 6), outcome_with(2.005)).result
    assert any(trial.config == Config(precision="bf16", compile="max") for trial in near.trials)
    assert groups(near.trials) == groups(first.trials)
    Ran(plan(tmp_path / "far", 2), outcome_with(0.9))
    far = Ran(plan(tmp_path / "far", 6), outcome_with(3.0)).result
    assert len(groups(far.trials)) == 2


def test_those_that_finals_have_begun_with_are_screened_first(tmp_path: Path) -> None:
    """Though others are expected to be faster by now."""
    space = worlds.resolved("workers", "precision", "layout")
    rates = {Config(): 100.0, Config(precision="bf16"): 150.0, Config(layout=True): 160.0, Config(workers=4): 170.0}
    trials = [
        Trial(number, Phase.SEARCH if config else Phase.BASELINE, config, "", worlds.measured(rate))
        for number, (config, rate) in enumerate(rates.items())
    ]
    history, tiers = History(space, worlds.OBJECTIVE, trials), Tiers({}, Knowledge())
    assert [trial.number for trial in candidates_of(history, trials, tiers)] == [3, 2, 1]
    assert [trial.number for trial in candidates_of(history, trials, tiers, going_on=(1,))] == [1, 3, 2]
