"""Configs that do with fewer knobs what others do, as far as the model of the gains knows. Pure.

The fastest of many trials tends to hold knobs that bring nothing: they were on board as it happened to be read well.
Each of them may cost a screen, and fails somewhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tuner.analysis.gain import WORTH_HAVING
from tuner.analysis.tiers import Tiers
from tuner.model import Config, Trial, Value, same_value
from tuner.search.gain_model import expected_excess
from tuner.search.history import History

NO_EFFECT = math.log(WORTH_HAVING)
"""A knob to which the model gives no more of the gain's logarithm, beside the others of its config, has none."""


class Leaner:
    """What the trials of a history say of which knobs are worth their place; nothing where none of them has a gain."""

    def __init__(self, history: History) -> None:
        self._history = history

    def of(self, config: Config) -> Config:
        """The config without the knobs that have no effect in it, the least useful one left out first; of those that
        change more than speed also without what can't be told from none.

        As it is where all have one, where it isn't on the axes, or where no such config is allowed.
        """
        kept = config
        while True:
            fewer = {knob: self._without(kept, knob) for knob in self._history.turned(kept)}
            losses = {
                one: loss for knob, one in fewer.items()
                if one != kept and (loss := self._loss_without(knob, kept, one)) is not None
            }  # fmt: skip
            least = min(losses, key=lambda one: losses[one], default=None)
            if least is None:
                return kept
            kept = least

    def _loss_without(self, knob: str, config: Config, leaner: Config) -> float | None:
        """What the config loses by that, as a logarithm; None where it may be something, or isn't allowed."""
        if self._history.is_ruled_out(leaner) or (found := self._loss(config, leaner)) is None:
            return None
        loss, deviation = found
        is_told = loss > deviation or self._history.space.space.knob(knob).tier < 2
        return loss if loss <= NO_EFFECT or not is_told else None

    def is_as_good(self, leaner: Config, config: Config) -> bool:
        """Whether the one is the other without some of its knobs, and nothing worth having by any of these is expected
        to be lost: what nobody knows may be a gain, and counts as far as it may be one.
        """
        ours, theirs = self._history.turned(leaner), self._history.turned(config)
        if len(ours) >= len(theirs) or not all(same_value(theirs.get(knob), value) for knob, value in ours.items()):
            return False
        found = self._loss(config, leaner)
        if found is None:
            return False
        read, deviation = self._as_read(config, leaner), found[1]
        loss = found[0] if read is None else read
        lost = expected_excess(np.array([loss]), np.array([deviation]), over=0.0)
        return float(lost[0]) <= NO_EFFECT * (len(theirs) - len(ours))

    def first(self, candidates: Sequence[Trial], tiers: Tiers) -> tuple[Trial, ...]:
        """The candidates, those before a better one that are as good with fewer knobs and change no more."""
        ordered: list[Trial] = []
        for trial in candidates:
            before = [
                one for one in candidates
                if self.is_as_good(one.config, trial.config) and tiers.of(one.config) <= tiers.of(trial.config)
            ]  # fmt: skip
            before.sort(key=lambda one: len(self._history.turned(one.config)))
            ordered += [one for one in (*before, trial) if one not in ordered]
        return tuple(ordered)

    def _without(self, config: Config, knob: str) -> Config:
        left: Mapping[str, Value] = {name: v for name, v in self._history.turned(config).items() if name != knob}
        return self._history.space.canonical(left)

    def _as_read(self, config: Config, other: Config) -> float | None:
        """How much more is expected of the one's trial than of the other's, as logarithms; None without either."""
        trials = [self._history.find(each) for each in (config, other)]
        gains = [self._history.expected(trial) if trial is not None else None for trial in trials]
        return math.log(gains[0] / gains[1]) if gains[0] and gains[1] else None

    def _loss(self, config: Config, other: Config) -> tuple[float, float] | None:
        """How much more the model gives the one than the other, as logarithms, and how far that may be off (standard
        deviation); None off the axes.
        """
        if self._history.model is None:
            return None
        rows = [self._history.space.row_of(each) for each in (config, other)]
        return None if None in rows else self._history.model.difference(np.array(rows, dtype=np.int64))
