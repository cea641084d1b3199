"""What a model is asked about and isn't trained on, whichever loader gives it, with gradients or without.

A call in ``eval()``, or without gradients, may be part of the training (a model labels its own batch, or has its batch
norm frozen). What comes next tells: a call to train, or a backward, is on the same batch; with another fetch this one
was evaluated on, unless all of its iteration is then trained on at once.

Where nothing came since the last backward, a model that trains is asked about something else: noise that it makes
pictures of, or what a rollout shows it, of which rows are known again where they are trained on (``rollouts``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

from ..clock import StepClock
from ..sources import TrainingSources
from .loader_places import Loader
from .types import Module

LOOKED_AT = 8
"""Calls to train behind such a question, whose rows it is looked for in: a rollout shows at the first."""


@dataclass(frozen=True)
class _Look:
    """A call in ``eval()`` or without gradients: of which module, whether so, and when it began."""

    module: weakref.ref[Module]
    gradients: bool
    in_eval: bool
    since: float


class EvaluationWatch:
    """Is told of each outermost call of a module, before it, of each backward, and of each step.

    What a call without gradients shows by itself is told to the clock at once, by others.
    """

    def __init__(self, clock: StepClock, sources: TrainingSources[Loader]) -> None:
        self._clock = clock
        self._sources = sources
        sources.before_fetch = self._fetch_begins
        self._taught: weakref.WeakSet[Module] = weakref.WeakSet()
        self._newest: _Look | None = None
        self._has_trained = False
        """Whether a model was called to train since the last fetch: then it is on that batch."""
        self._trains_in_eval = self._may_train_in_eval = False
        self._is_backed = False
        """Whether a backward has run since a loader is known to feed them."""
        self._asked_at: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        """Without gradients about a batch that no step was taken on yet: batches that were trained on before."""
        self._comes_again = False
        self._newest_batch, self._untrained_on = -1, sources.untrained_on
        self.is_acting: Callable[[Module], bool] = lambda module: False
        """Whether what this module is asked is known to be a rollout's."""
        self._looked_at = LOOKED_AT + 1
        """Calls to train since such a question, this one included."""

    @property
    def between_batches(self) -> bool:
        """Whether a model that trains was asked about something that no loader gave, few calls to train ago."""
        return self._looked_at <= LOOKED_AT

    def called(self, module: Module, gradients: bool) -> bool:
        """A module with parameters to train is called, or without ``gradients`` any. Returns whether that may be to
        evaluate it on a batch that a loader gave.
        """
        in_eval = not module.training
        if not gradients:
            self._note_batch(module)
        self._looked_at += gradients
        if gradients and not in_eval:
            self._trains(module)
        elif gradients and (module not in self._taught or self._trains_in_eval):
            self._has_trained = True
            self._clock.gradient_begins()
        elif self._newest is None or (in_eval and not self._newest.in_eval):
            if self._newest is None and not self._has_trained:
                self._sources.was_asked()
            self._newest = _Look(weakref.ref(module), gradients, in_eval, self._clock.now)
        if not gradients and self._is_backed and module in self._taught and not self._sources.has_fetched:
            self._looked_at = 0
            return True
        return self._newest is not None and not self._has_trained and self._sources.has_fetched

    def _note_batch(self, module: Module) -> None:
        self._comes_again = False
        if self._has_trained or not self._sources.has_fetched:
            return
        newest = self._sources.batches
        if newest != self._newest_batch:  # each part of a model is told of, in each of its calls
            self._newest_batch, self._untrained_on = newest, self._sources.untrained_on
        batches = self._untrained_on
        if batches is not None:
            again = 0 <= batches - self._asked_at.get(module, batches + 1) <= 1
            self._comes_again = again and self._sources.primary is not None
            self._asked_at[module] = batches

    def comes_with_each_batch(self, module: Module) -> bool:
        """Whether the module, whose call without gradients was told of last, was called so on the newest batch of those
        that train, and on the one before: it makes what several steps are then taken on, where another would have been
        validated after some.
        """
        return self._comes_again and module in self._asked_at

    def _trains(self, module: Module) -> None:
        if module not in self._taught:
            self._taught.update(module.modules())  # its parts may be evaluated by themselves
        elif self._has_trained and self._newest is None:
            return  # layers that the loop calls one by one
        self._newest = None
        self._has_trained = True
        self._clock.gradient_begins()

    def backward_ran(self) -> None:
        """What came is trained on; where it was asked about with gradients a model may train in ``eval()``."""
        self._may_train_in_eval |= self._newest is not None and self._newest.gradients
        self._newest = None
        self._is_backed = self._sources.primary is not None
        self._clock.gradient_begins()

    def step_ends(self) -> None:
        """A step is about to be counted: a backward without one is an attack's, or asks what an input would do."""
        self._trains_in_eval |= self._may_train_in_eval

    def _fetch_begins(self) -> None:
        """Another batch is asked for, where training does."""
        look, self._newest = self._newest, None
        if look is not None:
            if not self._has_trained:
                self._sources.was_asked(evaluated=True)
                self._asked_at.clear()
            module = look.module()
            if look.in_eval and module is not None and not self.is_acting(module):
                self._clock.evaluates(id(module), look.since)
        self._has_trained = self._may_train_in_eval = False
