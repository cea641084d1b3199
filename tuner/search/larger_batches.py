"""Larger effective batches, on top of the best config that keeps it: a contest of its own, judged by time to loss.

They climb from twice the effective batch on while each step up grows by something worth having, for each costs samples
to learn from (McCandlish et al., An Empirical Model of Large-Batch Training, 2018). What they reach never becomes the
incumbent of the search, nor is it told as the best so far.
"""

from __future__ import annotations

from tuner.analysis.bottleneck import Bound
from tuner.model import BASELINE, Config, Phase, Trial, Value
from tuner.search.history import History, Proposal

GROWS = 1.05
"""A larger batch that isn't faster by so much than the one before ends the climb: it learns less from each sample."""
BETTER_BASE = 1.03
"""Larger batches are tried again on top of a config that is so much faster than the one that they were tried on."""

LATE_AFTER = 8
"""On top of the best config they are tried once the search has had so many other trials: before that it often changes.
"""
UNTOLD_AFTER = 2
"""Where no probe told what holds the loop up, larger batches have their turn after so many other trials."""


class LargerBatchSampler:
    """Climbs through the space's larger batches, on top of the best config so far.

    ``early``: asked before the walk through the other knobs, which it lets go first unless steps cost more than their
    samples, or nobody knows; it climbs once, on top of what was best before its first trial. Otherwise it begins with
    the batch that was best on another config, and not before the search has had ``after`` other trials.
    """

    def __init__(self, *, early: bool = False, after: int = 0) -> None:
        self._early = early
        self._after = after

    def propose(self, history: History) -> Proposal | None:
        """The next larger batch that is worth a trial; None where there is none, or none yet."""
        if history.space.larger is None or history.find(BASELINE) is None:
            return None
        if not self._early:
            return _late(history) if _searched(history) >= self._after else None
        if not _is_early(history):
            return None
        first = min((trial.number for trial in history.larger), default=None)
        base = history.best if first is None else history.best_before(first)
        return _climb(history, base.config if base is not None else BASELINE, _values(history))


def _is_early(history: History) -> bool:
    """Whether larger batches are likely to bring most; without a probe nobody knows that before one was tried."""
    if history.bottleneck is None:
        return _searched(history) >= UNTOLD_AFTER
    return history.bottleneck.bound is Bound.OVERHEAD


def _searched(history: History) -> int:
    """How many trials the search has had beside those of larger batches."""
    return sum(trial.phase is Phase.SEARCH for trial in history.trials)


def _late(history: History) -> Proposal | None:
    """On top of the best config: from the batch on that was best before, unless the config is hardly better."""
    base = history.best
    config = base.config if base is not None else BASELINE
    bases = {history.space.without_batch(trial.config) for trial in history.larger}
    values = _values(history)
    if history.space.without_batch(config) not in bases:
        before = max((_gain(history, history.find(each)) for each in bases), default=0.0)
        if bases and _gain(history, base) < BETTER_BASE * before:
            return None
    best = history.best_larger
    if best is not None and len(bases - {history.space.without_batch(config)}) > 0:
        values = values[values.index(_value(history, best.config)) :]
    return _climb(history, config, values)


def _climb(history: History, base: Config, values: list[Value]) -> Proposal | None:
    """The first of these batches on top of the config that has no trial, if those before it grew.

    Where memory doesn't suffice for one it goes on with what spares memory, which costs time.
    """
    before, why = _gain(history, history.find(base)), f"on top of {_name(history, base)}"
    for value in values:
        config = history.space.with_larger(base, value)
        spared = history.space.spared(base) if history.is_too_large(config) else None
        if spared is not None:
            base, config = spared, history.space.with_larger(spared, value)
            why = f"{why}, with {history.space.lighter_name}: there is no memory for it without"
        trial = history.find(config)
        if trial is None:
            if history.is_larger_ruled_out(config):
                return None
            return Proposal(config, f"a larger effective batch (tier 3), {why}")
        own = _gain(history, trial)
        if own < GROWS * before:
            return None
        before = own
    return None


def _name(history: History, base: Config) -> str:
    trial = history.find(base)
    return f"trial {trial.number}" if trial is not None and trial.config else "the script as written"


def _values(history: History) -> list[Value]:
    """The larger batches, from the smallest on."""
    axis = history.space.larger
    return list(axis.values[axis.as_written + 1 :]) if axis is not None else []


def _value(history: History, config: Config) -> Value:
    assert history.space.larger is not None
    return config[history.space.larger.knob.name]


def _gain(history: History, trial: Trial | None) -> float:
    """The trial's gain; 0 without a figure."""
    return (history.gain(trial) or 0.0) if trial is not None else 0.0
