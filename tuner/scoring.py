"""A trial's worth under an objective, as ratios above 1 for better, whichever way the objective points."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tuner.model import Config, Outcome, Trial, Value
from tuner.objective import Objective

Key = tuple[tuple[str, str, Value], ...]

WORTH_HAVING = 1.01
"""A gain below this isn't worth a change of config, nor more search."""


def key_of(config: Config) -> Key:
    """The config as a hashable key. The type belongs to it: True isn't 1."""
    return tuple(sorted((name, type(value).__name__, value) for name, value in config.items()))


def score_of(outcome: Outcome | None, objective: Objective) -> float | None:
    """The objective's figure, None where the trial can't be judged by it."""
    if outcome is None or not outcome.complete or outcome.measurement is None:
        return None
    score = float(objective.score(outcome.measurement))
    # A ratio needs a positive finite figure; anything else is a measurement that failed.
    return score if math.isfinite(score) and score > 0 else None


def gain(score: float, reference: float, objective: Objective) -> float:
    """How many times better than the reference."""
    return score / reference if objective.maximize else reference / score


def best_of(trials: Iterable[Trial], objective: Objective) -> Trial | None:
    """The trial with the best figure; the earlier one of equals."""
    best: Trial | None = None
    best_score = 0.0
    for trial in trials:
        score = score_of(trial.outcome, objective)
        if score is not None and (best is None or gain(score, best_score, objective) > 1.0):
            best, best_score = trial, score
    return best
