"""A config that compiles and has no time for it ends no search of others that have: on a clock that runs move on."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

from support import worlds
from support.clocked import Clocked
from support.learning import searched
from support.ran import of

from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import Event, Noted
from tuner.model import Config, Outcome, Phase, Verdict
from tuner.result import StudyResult
from tuner.search.additive import AdditiveSampler
from tuner.search.chain import Chain
from tuner.search.history import History, Proposal, Sampler
from tuner.search.structured import StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.study.run import run_study
from tuner.study.search import CALM

COMPILED, MOST_COMPILED = Config(compile="default"), Config(compile="max")
TWO, FOUR, FAST = Config(workers=2), Config(workers=4), Config(precision="bf16")
LACKING = "with 50 s for a trial of compile="


class InOrder:
    """Proposes these, one after the other."""

    def __init__(self, *configs: Config) -> None:
        self._configs = configs

    def propose(self, history: History) -> Proposal | None:
        """The first one that has no trial and may have one."""
        left = (each for each in self._configs if history.find(each) is None and not history.is_ruled_out(each))
        config = next(left, None)
        return Proposal(config, "made up") if config is not None else None


def study(folder: Path, sampler: Sampler, budget_s: float) -> tuple[StudyResult, list[Event], list[Config]]:
    """With what was tried. Runs take ten seconds, those that compile forty more."""

    def outcome(config: Config) -> Outcome:
        return replace(worlds.World().outcome(config), seconds=50.0 if "compile" in config else 10.0)

    runner, events = Clocked(outcome), list[Event]()
    plan = worlds.plan(
        folder, budget_s=budget_s, trials=None, patience=None, accuracy=AccuracyLimits(max_loss_increase=None)
    )
    result = run_study(plan, runner, sampler, events.append, threading.Event(), clock=runner.clock)
    return result, events, searched(result)


def notes_of_time(events: list[Event]) -> list[str]:
    return [note.text for note in of(events, Noted) if note.text.startswith("no time for a trial of")]


def test_the_search_goes_on_with_what_there_is_time_for(tmp_path: Path) -> None:
    """It ended before its second trial, with the time for two of ten seconds."""
    result, events, configs = study(tmp_path, InOrder(TWO, COMPILED, MOST_COMPILED, FOUR, FAST), 120.0)
    assert configs == [TWO, FOUR, FAST]
    told = "no time for a trial of compile=default, and the search goes on with what takes less"
    assert notes_of_time(events) == [told], "once"
    assert LACKING in result.why, "not that every config has been tried"


def test_with_more_time_a_resumed_study_tries_what_had_none(tmp_path: Path) -> None:
    order = InOrder(TWO, COMPILED, FOUR)
    assert study(tmp_path, order, 115.0)[2] == [TWO, FOUR]
    again, events, configs = study(tmp_path, order, 1000.0)
    assert configs == [TWO, FOUR, COMPILED] and not notes_of_time(events)
    assert again.why == "every config worth a trial has been tried"


def test_where_nothing_else_is_left_the_search_says_what_it_lacks(tmp_path: Path) -> None:
    result, events, configs = study(tmp_path, InOrder(TWO, COMPILED), 115.0)
    assert configs == [TWO] and LACKING in result.why and not notes_of_time(events)


def test_a_sampler_that_knows_of_no_time_is_not_asked_for_ever(tmp_path: Path) -> None:
    class Stubborn:
        def propose(self, history: History) -> Proposal | None:
            """The compiler, as soon as there was another one."""
            return Proposal(COMPILED if history.find(TWO) else TWO, "made up")

    result, _, configs = study(tmp_path, Stubborn(), 115.0)
    assert configs == [TWO] and LACKING in result.why


class Expecting:
    """Proposes batches with two workers, and expects 30% of a compiler that it would try last."""

    def propose(self, history: History) -> Proposal | None:
        """What is expected is that of the best config that may be tried."""
        expected = 1.002 if history.is_ruled_out(COMPILED) else 1.3
        sizes = (Config(workers=w, batch_size=b) for w in (2, 1, 4, 8) for b in (64, 32, 128, 256, 512))
        left = (history.space.canonical(each) for each in sizes if history.find(each) is None)
        config = next(left, None)
        return Proposal(config, "made up", expected) if config is not None else None


def test_what_is_expected_of_a_config_without_time_keeps_no_search_going(tmp_path: Path) -> None:
    """The other trials brought nothing, and what is left of the time is the proof's."""
    result, events, configs = study(tmp_path, Expecting(), 220.0)
    assert CALM < len(configs) < 19 and result.seconds < 220.0
    assert LACKING in result.why and not notes_of_time(events)


def test_only_what_is_proven_first_is_said_to_come_before_another(tmp_path: Path) -> None:
    """The one that compiles gives way, since its rounds take too long: another one is proven."""
    sampler = Chain(StructuredSampler(8), AdditiveSampler(0), TpeSampler(0))
    result, events, _ = study(tmp_path, sampler, 400.0)
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    proven = {trial.config for trial in result.trials if trial.phase is Phase.FINALS}
    said = [re.match(r"trial (\d+) comes before trial", note.text) for note in of(events, Noted)]
    assert all(result.trials[int(match[1])].config in proven for match in said if match)
