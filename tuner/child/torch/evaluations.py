"""What a model is asked about in ``eval()`` and isn't trained on, whichever loader gives it, with gradients or without.

A call in ``eval()`` may be part of the training (a model labels its own batch, or has its batch norm frozen). What
comes next tells: a call to train, or a backward, is on the same batch; with another fetch this one was evaluated on.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from ..clock import StepClock
from ..sources import TrainingSources
from .loader_places import Loader
from .types import Module


@dataclass(frozen=True)
class _Look:
    """A call in ``eval()``: of which module, whether with gradients, and when it began."""

    module: int
    gradients: bool
    since: float


class EvaluationWatch:
    """Is told of each outermost call of a module, before it, and of each backward.

    What a call without gradients shows by itself is told to the clock at once, by others.
    """

    def __init__(self, clock: StepClock, sources: TrainingSources[Loader]) -> None:
        self._clock = clock
        self._sources = sources
        sources.before_fetch = self._fetch_begins
        self._taught: weakref.WeakSet[Module] = weakref.WeakSet()
        self._newest: _Look | None = None
        self._trains_in_eval = False

    def called(self, module: Module, gradients: bool) -> None:
        """A module with parameters to train is called, or without ``gradients`` any."""
        if module.training:
            if gradients:
                self._trains(module)
            return
        if gradients and (module not in self._taught or self._trains_in_eval):
            self._clock.gradient_begins()
            return
        if self._newest is None:
            self._newest = _Look(id(module), gradients, self._clock.now)
        self._sources.was_asked()

    def _trains(self, module: Module) -> None:
        if module not in self._taught:
            self._taught.update(module.modules())  # its parts may be evaluated by themselves
        self._newest = None
        self._clock.gradient_begins()

    def backward_ran(self) -> None:
        """What came is trained on; where it was asked about with gradients a model trains in ``eval()`` from here."""
        self._trains_in_eval |= self._newest is not None and self._newest.gradients
        self._newest = None
        self._clock.gradient_begins()

    def _fetch_begins(self) -> None:
        """Another batch is asked for, where training does."""
        look, self._newest = self._newest, None
        if look is not None:
            self._sources.was_asked(evaluated=True)
            self._clock.evaluates(look.module, look.since)
