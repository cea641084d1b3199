"""Whether what a sampler of the script's own reads is changed by others between its answers: the training, mostly.

Workers have it asked ahead, by as many batches as are prefetched: it would answer by what was known then.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import MethodType

from ..call_sites import is_library
from ..data_state import ITERATIONS_READ, State, state_of
from ..taken import taken_by
from .copies import beside
from .loader_places import Loader
from .told_samplers import read_at_first
from .types import DataLoader, LoaderIterator, Result

TOLD = "{} changes between the answers of a sampler that reads it, and workers ask it ahead"
MOST_LOOKS, LONGEST_S = 64, 0.1
"""Of one iteration: so many answers are looked around, and for so long in all."""
_FIXED = (type(None), bool, int, float, str)
"""Kinds of values that are never changed where they lie: whoever has read one has it as it was."""


class SamplerWatch:
    """Asks the samplers of the iterators; one watch for all of a trial's."""

    def __init__(self) -> None:
        self._watches: weakref.WeakKeyDictionary[LoaderIterator, _Watch] = weakref.WeakKeyDictionary()
        self._iterations = 0
        """Those whose samplers are the script's own."""

    def ask(
        self,
        original: Callable[[LoaderIterator], Result],
        iterator: LoaderIterator,
        loader: DataLoader | None,
        entry: Loader | None,
    ) -> Result:
        """The iterator's next index; ``loader``: whose iterator it is, None where that isn't known. What speaks
        against asking its sampler ahead is noted in ``entry``.
        """
        watch = self._watches.get(iterator)
        if watch is None and loader is not None:
            own = _own(loader) if self._iterations < ITERATIONS_READ else {}
            self._iterations += bool(own)
            watch = self._watches[iterator] = _Watch(own)
        if watch is None or not watch.looks():
            return original(iterator)
        reason = watch.before()
        if reason and entry is not None:
            entry.refused.update(num_workers=reason, prefetch_factor=reason)
        index = original(iterator)
        watch.after()
        return index


def _own(loader: DataLoader) -> dict[str, object]:
    """Name → sampler of the script's own that gives the loader's indices."""
    found: dict[str, object] = {}
    for name in ("batch_sampler", "sampler"):
        sampler = getattr(loader, name, None)
        file = getattr(sys.modules.get(type(sampler).__module__), "__file__", None)
        if sampler is not None and file is not None and not is_library(file):
            found[name] = sampler
    return found


class _Watch:
    """Of one iteration. What changes while the sampler answers is its own doing, and no matter."""

    def __init__(self, samplers: dict[str, object]) -> None:
        self._samplers = samplers
        self._answers = 0
        self._seconds = 0.0
        self._after: State = {}

    def looks(self) -> bool:
        """Whether a look is due around the answer that is asked for now."""
        self._answers += 1
        return bool(self._samplers) and self._answers <= MOST_LOOKS and self._seconds < LONGEST_S

    def before(self) -> str:
        """Why the sampler can't be asked ahead, or "". What was None at its last answer, or not there, is no change."""
        now, before = self._state(), self._after
        known = (path for path, value in before.items() if value is not None and path in now)
        return next((TOLD.format(path) for path in known if now[path] != before[path]), "")

    def after(self) -> None:
        """The sampler has answered."""
        self._after = self._state()

    def _state(self) -> State:
        began, read = time.perf_counter(), self._samplers
        with suppress(Exception):  # the user's own classes may raise anything
            read = {path: value for name, each in self._samplers.items() for path, value in _read_of(name, each)}
        state = state_of({**read, **beside(self._samplers)})
        self._seconds += time.perf_counter() - began
        return state


def _read_of(name: str, sampler: object) -> Iterator[tuple[str, object]]:
    """Path and value of what its ``__iter__`` reads of it; itself where that may be all of it. Numbers that it reads as
    it begins alone are no matter afterwards.
    """
    early = read_at_first(sampler)
    gives = getattr(sampler, "__iter__", None)
    taken = taken_by(gives) if isinstance(gives, MethodType) else None
    if taken is None:
        yield name, sampler
        return
    for each, part in taken.items():
        if each not in early or not isinstance(part, _FIXED):
            yield f"{name}.{each}", part
