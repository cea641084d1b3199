"""What functions hold that TensorFlow does not trace again: another function that calls one may get a kept trace."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .counters import Counters
from .types import Function, Optimizer


@dataclass
class Held:
    """In the traces of one function: what its gradients are counted by, and the optimizer that updates, if any."""

    counters: Counters
    optimizer: Optimizer | None = None


class KeptTraces:
    """Functions that are called while others are traced, and what was traced in them then."""

    def __init__(self) -> None:
        self._held: weakref.WeakKeyDictionary[Function, Held] = weakref.WeakKeyDictionary()
        self._calling: list[Function] = []

    @contextmanager
    def calling(self, function: Function) -> Iterator[None]:
        """What is traced meanwhile is traced in this function, as in those that call it."""
        self._calling.append(function)
        try:
            yield
        finally:
            self._calling.pop()

    def hold(self, outermost: Function | None, counters: Counters, optimizer: Optimizer | None = None) -> None:
        """A gradient, or an update, is being traced within ``outermost`` and those that it calls."""
        for function in self._calling if outermost is None else (outermost, *self._calling):
            held = self._held.setdefault(function, Held(counters))
            held.optimizer = held.optimizer or optimizer

    def of(self, function: Function) -> Held | None:
        """What is in its traces; None where no gradient is, or nothing is known of it."""
        return self._held.get(function)
