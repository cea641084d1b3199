"""Whether workers would draw the same random numbers in each epoch, as the script's ``worker_init_fn`` seeds them.

It isn't called as long as a loader has no workers. Those that start with each epoch would be seeded by the same number
each time, and augment as in the epoch before, where the training process goes on drawing others.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from ..identities import ByIdentity
from .draws import Draws
from .reached import functions, seeds
from .types import DataLoader, LoaderIterator, Result

ALIKE = "its worker_init_fn seeds workers by the same numbers in each epoch, and the data draw random ones"
_ANEW = frozenset({
    "initial_seed", "get_worker_info", "get_state", "get_rng_state", "getstate", "urandom", "time", "time_ns",
    "perf_counter", "monotonic", "randint", "randrange", "getrandbits", "random_", "integers", "SystemRandom", "now",
})  # fmt: skip
"""Names by which code reaches a number that is another one in each worker that is started."""
_COURSE = ("epoch", "step", "iter", "round", "pass")
"""Parts of the names of what a script counts up."""
_MOST_LOOKS, _MOST_LOADERS = 6, 64
"""So many batches are looked at of each of so many loaders that are there: one that only evaluates may be the first."""


class SeedWatch:
    """Looks at whether the first batches of loaders with such a function draw anything."""

    def __init__(self) -> None:
        self._alike: weakref.WeakKeyDictionary[LoaderIterator, bool] = weakref.WeakKeyDictionary()
        self._looks: ByIdentity[int] = ByIdentity()
        self._drawing: weakref.WeakSet[LoaderIterator] = weakref.WeakSet()

    def fetch(
        self, original: Callable[[LoaderIterator], Result], iterator: LoaderIterator, loader: DataLoader | None
    ) -> Result:
        """The iterator's next batch. With the first one samplers draw their order; the training process does that."""
        alike = self._alike.get(iterator)
        if alike is None and loader is not None and not loader.num_workers:
            self._alike[iterator] = seeds_alike(getattr(loader, "worker_init_fn", None))
        if not alike or loader is None or not self._may_look(loader):
            return original(iterator)
        drawn = Draws(sys.modules["torch"])
        batch = original(iterator)
        if drawn.moved():
            self._drawing.add(iterator)
        return batch

    def _may_look(self, loader: DataLoader) -> bool:
        """Whether this batch of the loader's is looked at; it counts as one that is."""
        looks = self._looks.get(loader, 0)
        may_look = looks < _MOST_LOOKS and (looks > 0 or len(self._looks) < _MOST_LOADERS)
        if may_look:
            self._looks[loader] = looks + 1
        return may_look

    def draws(self, iterator: LoaderIterator) -> bool:
        """Whether its batches were seen to draw numbers that workers would draw alike in each epoch."""
        return iterator in self._drawing


def seeds_alike(function: Any) -> bool:
    """Whether a function of the script's seeds a process's generators, by nothing that is seen to be another number
    each time.
    """
    while isinstance(function, partial):
        function = function.func
    if function is None:
        return False
    reached = list(functions([function], ("__call__",)))
    names = {name for _, each in reached for name in each}
    names |= {name for f, _ in reached for name in (*f.__code__.co_freevars, *f.__code__.co_varnames)}
    counts = any(part in name.lower() for name in names for part in _COURSE)
    return not counts and _ANEW.isdisjoint(names) and any(seeds(each.__code__) for each, _ in reached)
