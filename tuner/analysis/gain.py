"""A trial's worth under an objective, as ratios above 1 for better, whichever way the objective points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

from tuner.errors import ObjectiveError
from tuner.model import Outcome, Phase, Shift, Trial
from tuner.objective import Objective

_ANCHORS = frozenset({Phase.BASELINE, Phase.ANCHOR})
WORTH_HAVING = 1.01
"""A gain below this isn't worth a change of config, nor more search."""


def score_of(outcome: Outcome | None, objective: Objective) -> float | None:
    """The objective's figure, None where the trial can't be judged by it. Raises ``ObjectiveError`` where it fails."""
    if outcome is None or not outcome.complete or outcome.measurement is None:
        return None
    try:
        score = float(objective.score(outcome.measurement))
    except Exception as error:  # a third party's function may raise anything
        raise ObjectiveError(
            f"the objective {objective.name} fails on a measurement: {type(error).__name__}: {error}",
            hint="fix it; where a measurement lacks the figure it may return math.nan",
        ) from error
    # A ratio needs a positive finite figure; anything else is a measurement that failed.
    return score if math.isfinite(score) and score > 0 else None


def gain(score: float, reference: float, objective: Objective) -> float:
    """How many times better than the reference."""
    return score / reference if objective.maximize else reference / score


class Yardstick:
    """The baseline's figure along a study: it is measured again every few trials, since a machine drifts.

    A trial is held against the baseline of its own moment: the line between the runs before and after it, by number.
    """

    def __init__(self, trials: Iterable[Trial], objective: Objective) -> None:
        self._objective = objective
        scores = ((t.number, score_of(t.outcome, objective)) for t in trials if t.phase in _ANCHORS)
        self._anchors = sorted((number, score) for number, score in scores if score is not None)

    def gain(self, trial: Trial | None) -> float | None:
        """The trial's ratio to the baseline of its moment, above 1 for better; None without a figure.

        A probe has none: one side of the loop is no config.
        """
        if trial is None or trial.phase is Phase.PROBE:
            return None
        score, reference = score_of(trial.outcome, self._objective), self.reference(trial.number)
        return None if score is None or reference is None else gain(score, reference, self._objective)

    def score(self, trial: Trial) -> float | None:
        """The objective's figure of the trial; None where it has none."""
        return score_of(trial.outcome, self._objective)

    def reference(self, number: int) -> float | None:
        """What the baseline would have scored as trial ``number``; None before it was measured."""
        before, after = self._around(number)
        if before is None or after is None:
            return None
        if before[0] == after[0]:
            return before[1]
        share = (number - before[0]) / (after[0] - before[0])
        return before[1] + share * (after[1] - before[1])

    def drift(self, number: int) -> float:
        """How far the baseline moved around trial ``number``, as a ratio of at least 1."""
        before, after = self._around(number)
        if before is None or after is None:
            return 1.0
        return max(before[1], after[1]) / min(before[1], after[1])

    def shifts(self, least: float) -> list[Shift]:
        """Where the baseline moved by more than the ratio ``least``."""
        found = []
        for (before, one), (after, other) in pairwise(self._anchors):
            ratio = max(one, other) / min(one, other)
            if ratio > least:
                found.append(Shift(before, after, ratio))
        return found

    def _around(self, number: int) -> tuple[tuple[int, float] | None, tuple[int, float] | None]:
        before = next((anchor for anchor in reversed(self._anchors) if anchor[0] <= number), None)
        after = next((anchor for anchor in self._anchors if anchor[0] >= number), None)
        return before or after, after or before

    def best_of(self, trials: Iterable[Trial]) -> Trial | None:
        """The trial with the highest gain; the earlier one of equals."""
        best: Trial | None = None
        best_gain = 0.0
        for trial in trials:
            own = self.gain(trial)
            if own is not None and own > best_gain:
                best, best_gain = trial, own
        return best
