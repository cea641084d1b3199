"""Functions that take no gradient: which of them validate, and are set apart, and which are part of the loop."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..session import Session
from ..sources import TrainingSources
from ..stretches import Stretches, hash_of
from .entries import Given, TracedFunction
from .iteration import DatasetSource

_NAMES = re.compile(r"(?:^|_)(?:val|valid|validate|validation|test|eval|evaluate|evaluation|score|scores)(?:_|$)")


@dataclass
class _Seen(Stretches):
    """The calls of one function. ``batches``: fetched by its last one."""

    batches: int = 0


class ApartWatch:
    """Tells the clock where a function without a gradient begins to validate.

    One that is given a dataset's batches validates, and so does one that is given the same values again after other
    steps, or nothing. One that is given other values each time, and by no dataset, acts in what is trained on
    (rollouts), unless its name says that it doesn't. One that applies updates is part of the training.

    ``names``: of those that were set apart though no dataset feeds them; ``parts``: of those that weren't.
    """

    def __init__(self, session: Session, tf: ModuleType, sources: TrainingSources[DatasetSource]) -> None:
        self.names: dict[str, TracedFunction] = {}
        self.parts: dict[str, TracedFunction] = {}
        self._session = session
        self._tf = tf
        self._sources = sources
        self._seen: dict[Hashable, _Seen] = {}
        self._batches = 0
        self._opened: TracedFunction | None = None

    def gradient_ran(self) -> None:
        """What was fetched so far fed it."""
        self._batches = self._sources.batches

    def call_begins(self, entry: TracedFunction, given: Given, *, trained: bool) -> None:
        """A function is called that isn't known to take a gradient; ``trained``: whether a step was seen."""
        clock = self._session.clock
        if entry.steps_itself:
            clock.fetch_begins()
            return
        seen = self._seen.setdefault(entry.code, _Seen())
        fetched, seen.batches = self._sources.batches > max(seen.batches, self._batches), self._sources.batches
        of_keras = isinstance(entry.code, tuple)
        is_fed = bool(entry.sources) or entry.fetches or fetched or of_keras
        since, is_new = seen.called(clock.total_steps)
        if not (is_fed or _NAMES.search(entry.name.lower())):
            seen.compare(lambda: self._hash(given), is_new=is_new)
            if seen.varies:
                if trained and since >= clock.recurring.fewest_steps:
                    self.parts[entry.name] = entry
                return
        if not trained:
            return
        was_validating = clock.validating
        clock.validation_begins(entry.code)
        if clock.validating and not was_validating:
            self._opened = entry if not entry.calls else None
            if not is_fed:
                self.names[entry.name] = entry

    def it_trains(self, entry: TracedFunction) -> None:
        """A call of it has ended that takes a gradient, or updates what is trained."""
        if self._opened is entry:
            self._session.clock.was_training()
        self._opened = None
        self.names.pop(entry.name, None)

    def _hash(self, given: Given) -> int | None:
        return hash_of(self._tf.nest.flatten(given), self._every)

    def _every(self, leaf: Any, number: int) -> Any:
        return leaf.flat[::number] if hasattr(leaf, "flat") else self._tf.reshape(leaf, [-1])[::number].numpy()

    def remark(self) -> None:
        """Says of functions that nothing but their values tells of what became of them."""
        remark = self._session.facts.remark
        for name, entry in self.names.items():
            if not (name in self.parts or entry.steps_itself or entry.takes_gradients or entry.fetches):
                remark(f"{name} takes no gradient, and is called every few steps: it was set apart as validation")
        for name, entry in self.parts.items():
            if not entry.takes_gradients:
                remark(f"{name} takes no gradient, and is given other values each time: it is part of what is timed")
