"""Whether what a sampler of the script's own reads is changed by others between its answers: the training, mostly.

Workers have it asked ahead, by as many batches as are prefetched: it would answer by what was known then.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable

from ..call_sites import is_library
from ..data_state import State, state_of
from .copies import beside
from .loader_places import Loader
from .types import DataLoader, LoaderIterator, Result

TOLD = "{} changes between the answers of a sampler that reads it, and workers ask it ahead"
LOOKS = (1, 2, 3, 8, 16, 64, 256)
"""Answers around which is looked at what the sampler reads."""


class SamplerWatch:
    """Asks the samplers of the iterators; one watch for all of a trial's."""

    def __init__(self) -> None:
        self._watches: weakref.WeakKeyDictionary[LoaderIterator, _Watch] = weakref.WeakKeyDictionary()

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
            watch = self._watches[iterator] = _Watch(_own(loader))
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
    """Of one iteration: what the sampler changes by itself, as a count of its answers, is no matter."""

    def __init__(self, samplers: dict[str, object]) -> None:
        self._samplers = samplers
        self._answers = 0
        self._before: State = {}
        self._after: State = {}
        self._by_itself: set[str] = set()

    def looks(self) -> bool:
        """Whether a look is due around the answer that is asked for now."""
        self._answers += 1
        return bool(self._samplers) and self._answers in LOOKS

    def before(self) -> str:
        """Why the sampler can't be asked ahead, or ""."""
        self._before = self._state()
        changed = _changed(self._after, self._before)
        return next((TOLD.format(path) for path in changed if path not in self._by_itself), "")

    def after(self) -> None:
        """The sampler has answered."""
        self._after = self._state()
        self._by_itself.update(_changed(self._before, self._after))

    def _state(self) -> State:
        return state_of({**self._samplers, **beside(self._samplers)})


def _changed(before: State, now: State) -> list[str]:
    """Paths of values that aren't as they were; what was None, or not there, is no change."""
    return [path for path, value in before.items() if value is not None and path in now and now[path] != value]
