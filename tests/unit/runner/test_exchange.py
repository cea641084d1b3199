"""How long a trial and the script as written take turns: made-up trials, of which each turn is as long as it says."""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tuner.analysis.race import LOOKS_BEYOND, Race
from tuner.analysis.turns import Turn
from tuner.child.records import Block, Failure, Phase, Window
from tuner.child.turns import END
from tuner.child.unison import APART, RANKS_APART
from tuner.child.wire import Entry
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Script
from tuner.runner.request import TrialRequest
from tuner.runner.turns import LONGEST, LONGEST_AFTER_LONG_STARTS, LONGEST_VAGUE, Exchange, Standing, longest_s
from tuner.runner.watch import TrialWatch

WINDOW_S, TURN_S = 1.6, 0.25


class Played:
    """A trial that waits for its first turn, ``start_s`` seconds after it began. In each turn it trains for ``TURN_S``,
    after ``beside_s`` that aren't measured. It never ends by itself.
    """

    def __init__(self, amounts: list[int], *, start_s: float = 1.0, beside_s: float = 0.0) -> None:
        self._amounts = itertools.cycle(amounts)
        self._beside_s = beside_s
        self._turn = 0
        self.waits = True
        self.is_whole = True
        self.seconds = start_s
        self.ends_by = float("inf")
        self.blocks: list[tuple[float, Block]] = []
        self.entries: list[Entry] = []
        self.samples: list[Any] = []

    @property
    def has_enough(self) -> bool:
        return self.measured_s >= WINDOW_S

    @property
    def measured_s(self) -> float:
        return sum(block.seconds for _, block in self.blocks)

    def go_on(self, turn: int) -> None:
        self._turn = turn
        self.waits = turn != END

    def run(self, stop: threading.Event) -> None:
        if not self.waits:
            return
        assert self._turn < 10_000, "it goes on and on"
        block = Block(Phase.WINDOW, 5, next(self._amounts), TURN_S, 0.0, turn=self._turn)
        self.seconds += self._beside_s + TURN_S
        self.blocks.append((self.seconds, block))
        self.entries.append(Entry(self.seconds, block))


def exchanged(tmp_path: Path, trial: Played, race: Race) -> tuple[str, Played]:
    """Their turns to the end. What makes them no evidence, and the script as written."""
    window = Window(max_s=WINDOW_S)
    request = TrialRequest(tmp_path / "0001", Script("train.py", ()), cpu_device(), BASELINE, window=window)
    request.folder.mkdir(parents=True)
    written = Played([100])
    standing = Standing(request, replace(request, folder=tmp_path / "0"), cast(TrialWatch, written), ExitStack())
    exchange = Exchange(cast(TrialWatch, trial), request, lambda: standing, race)
    exchange.run(itertools.count(1), threading.Event())
    return exchange.obstacle, written


VAGUE_TURNS = [60, 130, 90, 160, 70, 140, 110, 80, 150]
ROUGH_TURNS = [90, 130, 105, 135, 95, 115, 85, 125, 100]
"""As fast as the script as written, give or take much: it may be the best one for long."""


@pytest.mark.parametrize(
    ("turns", "start_s", "windows"),
    [
        (ROUGH_TURNS, 1.0, LONGEST), (VAGUE_TURNS, 1.0, LONGEST_VAGUE),
        (VAGUE_TURNS, 16.0, 5.0), (VAGUE_TURNS, 600.0, LONGEST_AFTER_LONG_STARTS),
    ],
)  # fmt: skip
def test_a_rough_trial_goes_on_for_what_its_start_is_worth_and_a_vague_one_for_longer(
    tmp_path: Path, turns: list[int], start_s: float, windows: float
) -> None:
    trial = Played(turns, start_s=start_s)
    obstacle, _ = exchanged(tmp_path, trial, Race(1.0))
    assert not obstacle
    assert trial.measured_s == pytest.approx(windows * WINDOW_S, abs=TURN_S)


def test_a_vague_trial_that_can_be_no_best_one_ends_where_others_do(tmp_path: Path) -> None:
    trial = Played(VAGUE_TURNS, start_s=16.0)
    exchanged(tmp_path, trial, Unsettled(3.0))
    assert trial.measured_s <= LONGEST * WINDOW_S + TURN_S


def test_a_script_as_written_whose_ranks_come_apart_is_not_started_again(tmp_path: Path) -> None:
    """It would come apart in each trial, and its restarts would be told as its end."""
    window = Window(max_s=WINDOW_S)
    request = TrialRequest(tmp_path / "0001", Script("train.py", ()), cpu_device(), BASELINE, window=window)
    request.folder.mkdir(parents=True)
    started = []

    def standing() -> Standing:
        written = Played([100])
        written.waits = False
        written.entries.append(Entry(0.0, Failure(RANKS_APART, APART)))
        started.append(written)
        return Standing(request, replace(request, folder=tmp_path / "0"), cast(TrialWatch, written), ExitStack())

    exchange = Exchange(cast(TrialWatch, Played(ROUGH_TURNS)), request, standing, Race(1.0))
    exchange.run(itertools.count(1), threading.Event())
    assert exchange.obstacle == APART and len(started) == 1


def test_what_a_trial_spends_beside_its_window_is_no_part_of_its_start(tmp_path: Path) -> None:
    """A second of validation in each turn of a quarter of one, which would have it go on to its deadline."""
    trial = Played(ROUGH_TURNS, beside_s=1.0)
    exchanged(tmp_path, trial, Race(1.0))
    assert trial.measured_s == pytest.approx(LONGEST * WINDOW_S, abs=TURN_S)


class Unsettled(Race):
    """A race that nothing settles before the window is over."""

    def is_settled(self, pairs: Sequence[tuple[Turn, Turn]], *, whole: bool) -> bool:
        return False


def test_a_trial_that_goes_on_is_asked_at_few_moments_whether_it_has_to(tmp_path: Path) -> None:
    asked = []

    class Asked(Unsettled):
        def is_open(self, pairs: Sequence[tuple[Turn, Turn]]) -> bool:
            asked.append(sum(own.seconds for own, _ in pairs) / WINDOW_S)
            return True

    trial = Played([100], start_s=600.0)
    exchanged(tmp_path, trial, Asked(1.0))
    assert [math.floor(4 * windows) / 4 for windows in asked] == [1.0, *LOOKS_BEYOND]
    assert trial.measured_s == pytest.approx(LONGEST_AFTER_LONG_STARTS * WINDOW_S, abs=TURN_S)


def test_a_trial_that_is_sharp_between_two_looks_ends_at_the_next_one(tmp_path: Path) -> None:
    ends = []
    for seed in range(6):
        trial = Played(random.Random(seed).choices(range(80, 135), k=200), start_s=600.0)
        obstacle, _ = exchanged(tmp_path / str(seed), trial, Unsettled(1.0))
        assert not obstacle
        ends.append(trial.measured_s)
    looks = [windows * WINDOW_S for windows in (1.0, *LOOKS_BEYOND, LONGEST_AFTER_LONG_STARTS)]
    assert all(min(abs(end - look) for look in looks) <= TURN_S for end in ends)
    assert len(set(ends)) > 1


def test_the_longest_is_two_windows_at_least_and_six_at_most() -> None:
    assert longest_s(2.0, 0.0) == longest_s(2.0, 8.0) == 4.0
    assert longest_s(2.0, 12.0) == 6.0
    assert longest_s(2.0, 1e6) == 12.0
