"""Plays a sampler on a recorded grid, and scores what it would have recommended by what is true of that."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from grid_players import Player
from grid_races import FINALS_S, raced, whole

from tuner.analysis.memory_forecast import MemoryLimits
from tuner.formatting import config_text
from tuner.model import BASELINE, Config, Phase, Trial
from tuner.objective import RATE
from tuner.runner.grid_replay import GridReplay
from tuner.search.history import History
from tuner.space.registry import SPACES, load_space, names
from tuner.space.resolved import ResolvedSpace
from tuner.storage.grid import Grid

TRIALS = (5, 10, 20, 40)
SHARES = (0.05, 0.1, 0.2)
"""Of the seconds that the whole grid took to record."""


@dataclass(frozen=True)
class Step:
    """What is known after a trial: the seconds spent by then, the probe's and the script as written's among them; the
    true gain of what is recommended, as a share of the best true gain of the grid; whether the trial failed; and how
    long the sampler thought of it, of one core.
    """

    seconds: float
    fraction: float
    failed: bool
    proposal_s: float = 0.0


@dataclass(frozen=True)
class Played:
    """A sampler's way through a grid. ``start`` is what is recommended before the first trial, the script as written;
    ``total_s`` the seconds that the whole grid took; ``configs`` how many it has beside the script as written.
    """

    start: float
    total_s: float
    steps: tuple[Step, ...]
    configs: int = 0

    def after(self, trials: int) -> float:
        """The fraction after so many trials; of one that ended before, its last."""
        return self.steps[min(trials, len(self.steps)) - 1].fraction if self.steps and trials else self.start

    def within(self, share: float) -> float:
        """The fraction after the last trial that ended within that share of the grid's seconds."""
        done = [step for step in self.steps if step.seconds <= share * self.total_s]
        return done[-1].fraction if done else self.start

    def failures(self, trials: int) -> int:
        """How many of the first trials failed."""
        return sum(step.failed for step in self.steps[:trials])


@dataclass(frozen=True)
class Score:
    """Of a sampler on one grid or on several: over seeds, the mean and the tenth percentile at each of ``TRIALS`` and
    ``SHARES``; the failed trials among the first 40, and how many of those it ran.
    """

    after: tuple[tuple[float, float], ...]
    within: tuple[tuple[float, float], ...]
    failures: float
    trials: float


def play(
    grid: Grid,
    make: Callable[[ResolvedSpace, int], Player],
    seed: int,
    *,
    most: int = TRIALS[-1],
    share: float = SHARES[-1],
    longer: Grid | None = None,
    races: bool = False,
) -> Played:
    """Runs the sampler until both the ``most`` trials and that ``share`` of the seconds are spent, or it is through.

    ``longer``: as for ``GridReplay``. ``races``: trials are as long as those of a study with its usual window, which
    depends on what they say, and read other turns than those by which they are judged; then who has finals runs these,
    whose runs count as trials. Else trials are as they were recorded, and nothing follows the search.

    Raises ``ValueError`` where it proposes what it has run: a config that failed isn't to be run twice.
    """
    replay = GridReplay(grid, seed, longer, apart=races)
    header, space = grid.header, as_declared(replay.space)
    limits = MemoryLimits(header.max_device_bytes, header.max_host_bytes)
    player = make(space, seed)
    known = replay.trials()
    trials = known if player.probes else known[:1]
    seconds = sum(trial.outcome.seconds for trial in trials if trial.outcome is not None)
    best, total_s = replay.best[1], replay.total_s
    steps: list[Step] = []

    def is_over() -> bool:
        return len(steps) >= most and seconds >= share * total_s

    history = History(space, RATE, trials, limits)
    while not is_over():
        # One that nobody has asked anything yet, as a study's is: what it computes is part of the proposal.
        history = History(space, RATE, trials, limits)
        began = time.thread_time()
        config = player.propose(history)
        took = time.thread_time() - began
        if config is None:
            break
        if history.find(config) is not None:
            raise ValueError(f"{type(player).__name__} proposes {config_text(config)} again")
        outcome = replay.outcome(config, raced(history, replay.start_s(config)) if races else None)
        trials = [*trials, Trial(len(trials), Phase.SEARCH, config, "", outcome)]
        seconds += outcome.seconds
        history = History(space, RATE, trials, limits)
        recommended = player.recommend(history)
        steps.append(Step(seconds, replay.true_gain(recommended) / best, not outcome.complete, took))
    for run_s, found in _finals(player, history, replay) if races else ():
        if is_over():
            break
        seconds += run_s
        before = steps[-1].fraction if steps else replay.true_gain(BASELINE) / best
        steps.append(Step(seconds, before if found is None else replay.true_gain(found) / best, failed=False))
    return Played(replay.true_gain(BASELINE) / best, total_s, tuple(steps), len(grid.configs) - 1)


def as_declared(space: ResolvedSpace) -> ResolvedSpace:
    """The space of a grid with how many workers keep up with a loop, a function that its file can't hold, by the space
    of its name that is installed; as it is where there is none.
    """
    if space.space.name not in names(SPACES):
        return space
    declared = {knob.name: knob.keeps_up for knob in load_space(space.space.name).knobs}
    axes = tuple(
        replace(axis, knob=replace(axis.knob, keeps_up=declared.get(axis.knob.name))) for axis in space.axes
    )  # fmt: skip
    return replace(space, axes=axes)


def _finals(player: Player, history: History, replay: GridReplay) -> Iterator[tuple[float, Config | None]]:
    """The finals' runs, round by round, the script as written among them: the seconds of each; and with the last run of
    a round the finalist whose ratios are largest, as their geometric mean, None with the others.

    In a round all take turns, so that each has the seconds of its start and of its own turns.
    """
    as_written = replay.trials()[0].measurement
    assert as_written is not None
    finalists = player.finalists(history) if player.rounds else ()
    logs: dict[Config, float] = dict.fromkeys(finalists, 0.0)
    for _ in range(player.rounds if len(logs) > 1 else 0):
        yield replay.start_s(BASELINE, fresh=True) + FINALS_S, None
        for place, config in enumerate(finalists, 1):
            outcome = replay.longer(config, whole())
            found = outcome.measurement
            assert found is not None, "what was measured once is measured again"
            # What took no turns is held against the script as written by itself.
            logs[config] += math.log(found.reference.gain.ratio if found.reference else found.rate / as_written.rate)
            yield outcome.seconds, max(logs, key=lambda one: logs[one]) if place == len(finalists) else None


def score(played: Sequence[Played]) -> Score:
    """The figures of one or more ways through grids."""
    most = TRIALS[-1]
    return Score(
        tuple(_figures([each.after(trials) for each in played]) for trials in TRIALS),
        tuple(_figures([each.within(share) for each in played]) for share in SHARES),
        statistics.fmean(each.failures(most) for each in played),
        statistics.fmean(min(most, len(each.steps)) for each in played),
    )


def _figures(fractions: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(fractions), tenth(fractions)


def tenth(values: Sequence[float]) -> float:
    """The tenth percentile: a tenth of the values, rounded up, is no larger."""
    return sorted(values)[math.ceil(len(values) / 10) - 1]
