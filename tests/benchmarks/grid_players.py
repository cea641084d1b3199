"""What plays on recorded grids, and what most of them recommend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tuner.model import BASELINE, Config, Phase
from tuner.search.history import History

FINALISTS, ROUNDS = 3, 5
"""As many as a study has, where nobody says otherwise."""


class Player(Protocol):
    """Plays on one grid."""

    probes: bool
    """Whether it begins with a probe of the bottleneck, and is charged for it."""

    def propose(self, history: History) -> Config | None:
        """The next config to run: canonical, allowed and not run yet; None where it has no other."""
        ...

    def recommend(self, history: History) -> Config:
        """What it would have the user train with by now."""
        ...

    rounds: int
    """Of finals that follow once it has no other config to run, in a study; 0 for none."""

    def finalists(self, history: History) -> Sequence[Config]:
        """Who would meet the script as written in them, the best first."""
        ...


class Fastest:
    """Recommends what was measured as the fastest."""

    probes = False
    rounds = 0

    def recommend(self, history: History) -> Config:
        """The script as written where nothing was faster."""
        best = history.best
        gain = history.gain(best) if best is not None else None
        return best.config if best is not None and gain is not None and gain > 1 else BASELINE

    def finalists(self, history: History) -> Sequence[Config]:
        """Those that were measured as the fastest."""
        tried = [(history.gain(trial) or 0.0, trial.config) for trial in history.trials if trial.config]
        gains = [each for each in tried if each[0] > 1.0]
        return [config for _, config in sorted(gains, key=lambda each: -each[0])[:FINALISTS]]


class ThenFinals:
    """Another one's search of so many trials, then the finals that a study holds."""

    rounds = ROUNDS

    def __init__(self, player: Player, trials: int) -> None:
        self._player = player
        self._trials = trials
        self.probes = player.probes
        self.recommend: Callable[[History], Config] = player.recommend
        self.finalists: Callable[[History], Sequence[Config]] = player.finalists

    def propose(self, history: History) -> Config | None:
        """As the other one, until the trials are spent."""
        searched = sum(trial.phase is Phase.SEARCH for trial in history.trials)
        return self._player.propose(history) if searched < self._trials else None
