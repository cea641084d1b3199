"""Optuna's tree-structured Parzen estimator over what is left of the space.

Source: Bergstra et al., Algorithms for Hyper-Parameter Optimization, NeurIPS 2011; as implemented by Optuna 5.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from tuner.model import Config, Trial
from tuner.search.history import History, Proposal
from tuner.space.resolved import Axis

ASKS = 40
"""So many proposals in a row that were tried already, and TPE has nothing new."""
WORKS = "works"
"""The one constraint that every trial carries: at most 0 where the config works."""


class TpeSampler:
    """Builds Optuna's study anew from the history for every proposal: there is no state that could be lost.

    ``seed`` and the number of trials decide what is proposed. A config that can't work is PRUNED for Optuna, with a
    violated constraint: it ignores FAIL, and then proposes the same crash again and again.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        optuna.logging.set_verbosity(optuna.logging.WARNING)

    def propose(self, history: History) -> Proposal | None:
        """A config that TPE finds promising, else any untried neighbour of the best, else None."""
        if not history.axes:
            return None
        seed = _seed(self._seed, len(history.trials))
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), direction="maximize")
        distributions = {axis.knob.name: _distribution(axis) for axis in history.axes}
        placed = [(trial, history.indices_of(trial)) for trial in history.trials]
        known = [(trial, indices) for trial, indices in placed if indices is not None]  # others lie off the axes
        study.add_trials([_optuna_trial(trial, indices, history, distributions) for trial, indices in known])
        for _ in range(ASKS):
            asked = study.ask(distributions)
            config = _config_of(asked.params, history)
            if _is_new(config, history):
                return Proposal(config, "what the trials so far suggest")
            study.tell(asked, state=TrialState.FAIL)  # ignored by TPE: it learns nothing from a repeat
        return neighbour(history, random.Random(seed))


def _optuna_trial(
    trial: Trial, places: Sequence[int], history: History, distributions: Mapping[str, BaseDistribution]
) -> FrozenTrial:  # fmt: skip
    gain = history.gain(trial)
    indices = dict(zip((axis.knob.name for axis in history.space.axes), places, strict=True))
    return optuna.trial.create_trial(
        state=TrialState.COMPLETE if gain is not None else TrialState.PRUNED,
        value=gain,
        params={name: indices[name] for name in distributions},
        distributions=dict(distributions),
        constraints={WORKS: -1.0 if gain is not None else 1.0},
        user_attrs={"number": trial.number},
    )


def _distribution(axis: Axis) -> BaseDistribution:
    """Over indices: the values' own distances say little (1, 2, 64), their order does."""
    if axis.knob.ordered:
        return IntDistribution(0, len(axis.values) - 1)
    return CategoricalDistribution(tuple(range(len(axis.values))))


def _config_of(params: Mapping[str, Any], history: History) -> Config:
    indices = {axis.knob.name: int(params.get(axis.knob.name, axis.as_written)) for axis in history.space.axes}
    return history.space.config_of(indices)


def neighbour(history: History, chance: random.Random) -> Proposal | None:
    """An untried config one step from the best trial, then from any other one."""
    trials = sorted((t for t in history.trials if history.gain(t) is not None), key=lambda t: t is not history.best)
    for trial in trials:
        steps = [(axis, value) for axis in history.axes for value in axis.values]
        chance.shuffle(steps)
        for axis, value in steps:
            config = history.space.canonical({**history.turned(trial.config), axis.knob.name: value})
            if _is_new(config, history):
                return Proposal(config, f"a neighbour of trial {trial.number}")
    return None


def _is_new(config: Config, history: History) -> bool:
    return history.find(config) is None and not history.is_ruled_out(config)


def _seed(base: int, trials: int) -> int:
    """A sampler re-created with the same seed would repeat its start."""
    return int.from_bytes(hashlib.sha256(f"{base}:{trials}".encode()).digest()[:4], "big")
