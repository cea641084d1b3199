"""Screens that stay open however many seeds they have: they end no study, and bar nobody but by what they show."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.learning import AS_WRITTEN, COMPILED, GAINS, Learner, searched, studied
from support.ran import of

from tuner.analysis.accuracy import MOST_SEEDS, AccuracyLimits
from tuner.analysis.stats import Noninferiority
from tuner.events import Noted
from tuner.model import Config, Outcome, OutcomeKind, Phase, Verdict
from tuner.report.summary import summary
from tuner.runner.request import Interrupted, TrialRequest

FASTEST = Config(precision="bf16", compile="default")
GOES_ON = "nothing that was found is shown to learn as well: the search looks for what is faster without it"
ALIKE = "what it changes beside speed was not shown to learn as well in the screen of "


def off(config: Config, seed: int) -> Sequence[float]:
    """With bf16 sometimes better and sometimes worse, by twice the margin: no number of seeds tells."""
    apart = (0.03 if seed % 2 else -0.03) if config.get("precision") == "bf16" else 0.0
    return [loss + apart for loss in AS_WRITTEN]


def barely(config: Config, seed: int) -> Sequence[float]:
    """Nothing comes down, as written neither."""
    return [2.303] * 10 + [2.283] * 50


def unlucky(config: Config, seed: int) -> Sequence[float]:
    """The fastest config is worse by twice the margin with its first three seeds, and no worse with others."""
    apart = 0.024 + 0.004 * seed if config == FASTEST and seed < 4 else 0.0
    return [loss + apart for loss in AS_WRITTEN]


@pytest.mark.slow  # 4 s beside three others
def test_the_search_goes_on_without_what_stays_open(tmp_path: Path) -> None:
    """The compiler alone was never tried, since bf16 was faster: the study ended with time left, and nothing proven."""
    for name, losses, seeds in (("open", off, MOST_SEEDS), ("untold", barely, 0)):
        result, events = studied(tmp_path / name, Learner(losses), budget_s=3000.0)
        assert {(one.verdict, one.seeds) for one in result.screened} == {(Noninferiority.INCONCLUSIVE, seeds)}, name
        assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED, name
        assert result.winner.config == COMPILED and searched(result).index(COMPILED) > 1
        assert [note.text for note in of(events, Noted) if "the search looks for" in note.text] == [GOES_ON]
        again, _ = studied(tmp_path / name, Learner(losses), budget_s=3000.0)
        assert (again.winner, again.trials) == (result.winner, result.trials), name


@pytest.mark.slow  # 6 s beside three others
def test_what_two_screens_leave_open_has_no_third_and_is_not_built_on(tmp_path: Path) -> None:
    """Though something else is proven: each config with bf16 had twelve runs of its own, with the same end, and of what
    is beside the compiler nothing but bf16 was tried.
    """
    gains = {**GAINS, "fp16": 1.5}
    for trials in (3, 6, 9):
        result, _ = studied(tmp_path, Learner(off, gains), trials=trials)
        assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    is_open = [one.config for one in result.screened if one.verdict is Noninferiority.INCONCLUSIVE]
    assert len(is_open) == 2 and len([config for config in searched(result) if config.get("precision") == "bf16"]) > 2
    assert result.winner is not None and result.winner.config == Config(precision="fp16", compile="default")


@pytest.mark.slow  # 4 s beside three others
def test_a_study_that_goes_on_builds_nothing_on_it(tmp_path: Path) -> None:
    for name, losses in (("open", off), ("untold", barely)):
        first, _ = studied(tmp_path / name, Learner(losses), trials=4)
        assert first.winner is None
        again, _ = studied(tmp_path / name, Learner(losses), trials=12)
        tried = searched(again)[len(searched(first)) :]
        assert tried and all(config.get("precision") != "bf16" for config in tried), name
        assert again.winner is not None and again.winner.config == COMPILED, name


def test_the_summary_says_why_what_is_like_it_is_not_proven(tmp_path: Path) -> None:
    """"no time left to prove it" was said, in a study without a budget."""
    result, _ = studied(tmp_path, Learner(off), selection=("precision",), trials=2, effective_batch="keep")
    said = summary(result, {}, "")
    assert "not proven: it was not shown to learn as well as the script as written" in said
    other = replace(result.screened[0], config=Config(precision="bf16", compile="max"))
    assert f"{ALIKE}precision=bf16 compile=max" in summary(replace(result, screened=(other,)), {}, "")


def test_bad_luck_with_three_seeds_bars_no_others(tmp_path: Path) -> None:
    """All with bf16 were rejected for it, without a screen of their own."""
    limits = AccuracyLimits(samples=600, min_sample_efficiency=None)
    result, _ = studied(tmp_path, Learner(unlucky), trials=12, accuracy=limits)
    verdicts = {one.config: (one.verdict, one.seeds) for one in result.screened}
    assert verdicts[FASTEST] == (Noninferiority.INCONCLUSIVE, MOST_SEEDS)
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    assert result.winner.config.get("precision") == "bf16"


class Late(Learner):
    """There is no time for a trial of the fastest config; whoever waits stops the study before its first screen."""

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """As far as there is time for it."""
        if request.seed is not None:
            raise Interrupted
        if request.config == FASTEST:
            return Outcome(OutcomeKind.UNFINISHED, "out-of-time", "its part of the study's time was over", seconds=30.0)
        return super().run(request, stop)


def test_the_screen_of_a_config_that_was_tried_again_counts_once(tmp_path: Path) -> None:
    """A trial that came too late is followed by another one of its config: bad luck of its one screen was taken for
    that of two, and barred all with its format.
    """
    limits = AccuracyLimits(samples=600, min_sample_efficiency=None)
    for runner, trials in ((Late, 4), (Learner, 12)):
        result, _ = studied(tmp_path, runner(unlucky), trials=trials, budget_s=30_000.0, accuracy=limits)
    assert searched(result).count(FASTEST) == 2
    verdicts = {one.config: (one.verdict, one.seeds) for one in result.screened}
    assert verdicts[FASTEST] == (Noninferiority.INCONCLUSIVE, MOST_SEEDS)
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    assert result.winner.config.get("precision") == "bf16"


class TooLong(Learner):
    """No run of a screen is through in time, as written neither."""

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """One of the search is."""
        if request.seed is not None:
            return Outcome(OutcomeKind.TIMED_OUT, "deadline", "it took too long", seconds=30.0)
        return super().run(request, stop)


def test_what_one_seed_leaves_open_for_good_has_no_more_of_them_and_ends_no_search(tmp_path: Path) -> None:
    for _ in range(2):
        result, events = studied(tmp_path, TooLong(off), budget_s=3000.0)
        assert {(one.verdict, one.seeds) for one in result.screened} == {(Noninferiority.INCONCLUSIVE, 1)}
        assert {trial.seed for trial in result.trials if trial.phase is Phase.SCREEN} == {1}
        assert result.winner is not None and result.winner.config == COMPILED
    assert not [note for note in of(events, Noted) if "the search looks for" in note.text], "it was looked for before"
