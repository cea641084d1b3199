"""How many steps functions have taken: by their optimizers and gradients, which several of them may share."""

from __future__ import annotations

import weakref
from types import ModuleType

from .counters import Counters
from .entries import TracedFunction
from .types import Optimizer


class Progress:
    """Each step is told once, of the function whose call has ended: another one may update by the same optimizer."""

    def __init__(self, tf: ModuleType) -> None:
        self._tf = tf
        self._told: weakref.WeakKeyDictionary[Optimizer | Counters, float] = weakref.WeakKeyDictionary()

    def begins(self, optimizer: Optimizer) -> None:
        """A function that updates by it is being traced."""
        if optimizer not in self._told:
            self._told[optimizer] = self._updates(optimizer)

    def told_elsewhere(self, optimizer: Optimizer, count: int) -> None:
        """The script has taken so many steps with it outside of functions, which are told of there."""
        if optimizer in self._told:
            self._told[optimizer] += count

    def taken(self, entry: TracedFunction) -> float:
        """Steps since the last time that anything was told of what counts them; waits for the device."""
        count = 0.0
        for counted in self._counted(entry):
            now = self._done(counted)
            count += max(0.0, now - self._told.get(counted, 0.0))
            self._told[counted] = now
        return count

    def assumed(self, entry: TracedFunction) -> float:
        """As ``taken``, of a function each call of which is one step: nothing waits."""
        first = self._counted(entry)[0]
        self._told[first] = self._told.get(first, 0.0) + 1
        return 1.0

    def is_as_assumed(self, entry: TracedFunction) -> bool:
        """Whether as many steps were taken as were told of; waits for the device."""
        return all(self._done(counted) == self._told.get(counted, 0.0) for counted in self._counted(entry))

    def _counted(self, entry: TracedFunction) -> list[Optimizer | Counters]:
        """The optimizer knows, and without one every gradient is a step."""
        return [entry.optimizer] if entry.optimizer is not None else [entry.counters, *entry.others]

    def _done(self, counted: Optimizer | Counters) -> float:
        return counted.read().gradients if isinstance(counted, Counters) else self._updates(counted)

    def _updates(self, optimizer: Optimizer) -> int:
        try:
            with self._tf.init_scope():
                return int(optimizer.iterations.numpy())
        except Exception:
            return 0  # its variables are being made by this very trace
