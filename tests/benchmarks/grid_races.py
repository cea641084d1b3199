"""How long a trial in a game is measured: as a study with its usual window does it, by the pairs of turns so far."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.analysis.race import Race, asked_again_after
from tuner.analysis.turns import FEWEST_CALM, scatter_of
from tuner.model import Phase
from tuner.runner.grid_replay import Pair, Until
from tuner.runner.turns import LONGEST_VAGUE, longest_s
from tuner.search.history import History

WINDOW_S, FINALS_S = 1.6, 3.0
"""Of the turns of a search trial, and of a run in the finals: the shares that a study has of its usual window, 20 s."""


def raced(history: History, start_s: float, window_s: float = WINDOW_S) -> Until:
    """When a trial that took so long to its first turn is over: as ``tuner/runner/turns.py`` says it, against what the
    history holds.

    One that is sure to lose ends early, and one that may be the best goes on while its interval is wide.
    """
    best = history.best
    searched = [trial.measurement for trial in history.trials if trial.phase is Phase.SEARCH]
    race = Race(history.gain(best) if best is not None else None, scatter_of(one for one in searched if one))
    longest, asked_after, is_prolonged = longest_s(window_s, start_s), 0.0, False

    def is_over(pairs: Sequence[Pair]) -> bool:
        nonlocal longest, asked_after, is_prolonged
        measured_s = sum(own.seconds for own, _ in pairs)
        if race.is_settled(pairs, whole=True):
            return True
        if measured_s < window_s:
            return False
        if measured_s >= longest and not is_prolonged and race.says_little(pairs):
            longest, is_prolonged = max(longest, LONGEST_VAGUE * window_s), True
        if measured_s >= longest:
            return True
        windows = measured_s / window_s
        if windows < asked_after:
            return False
        asked_after = asked_again_after(windows)
        return len(pairs) >= FEWEST_CALM and not race.is_open(pairs)

    return is_over


def whole(window_s: float = FINALS_S) -> Until:
    """When a run of the finals is over: once its turns have filled the window."""
    return lambda pairs: sum(own.seconds for own, _ in pairs) >= window_s
