"""What the script's sampler gives, taken for whoever makes the batch: an epoch has the batches that it has as written.

An epoch's short last batch is made by the script's own loader in anybody's turn: workers of another one would give it
after those that they have ahead, within a later epoch.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import chain
from types import ModuleType
from typing import Any

from .types import DataLoader, LoaderIterator, Result, WorkersIterator

MOST_REMEMBERED = 64


class Feed:
    """Gives indices as a sampler does, without an end: those that are ``due``, else such as were given out before."""

    def __init__(self, before: Collection[object]) -> None:
        self.due: deque[object] = deque()
        self._before = before
        self._given = 0

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        if self.due:
            return self.due.popleft()
        known = list(self._before)
        if not known:
            raise StopIteration
        self._given += 1
        return known[self._given % len(known)]


class ScriptIndices:
    """``loader_of``: gives the script's loader that an iterator is of. ``dropped`` is told of each batch of the
    script's own that it doesn't get, as another one stood for it. ``before``: whole batches that were given out.
    """

    def __init__(
        self,
        torch: ModuleType,
        loader_of: Callable[[LoaderIterator], DataLoader | None],
        dropped: Callable[[LoaderIterator], None],
    ) -> None:
        self._torch: Any = torch
        self._loader_of = loader_of
        self._dropped = dropped
        self.before: deque[object] = deque(maxlen=MOST_REMEMBERED)
        self._skipped: weakref.WeakKeyDictionary[LoaderIterator, int] = weakref.WeakKeyDictionary()
        """Batches on their way in whose place others were given; they come first of those that are."""

    def refusal(self, loader: DataLoader) -> str:
        """Why it isn't known how long the loader's batches are, or ""."""
        sampler = self._sampler(loader)
        if sampler is None:
            return "its batches aren't made by PyTorch's own BatchSampler: which of them is an epoch's last isn't known"
        try:
            len(sampler.sampler)
        except Exception:  # the user's own may raise anything
            return f"its {type(sampler.sampler).__name__} has no length: how long an epoch's last batch is isn't known"
        return ""

    def begins_anew(self, iterator: LoaderIterator | None) -> None:
        """The script's own iterates a new epoch: nothing is on its way any more of what was."""
        if iterator is not None:
            self._skipped.pop(iterator, None)

    def given_out(self, iterator: LoaderIterator, index: object) -> None:
        """The script's sampler gave this one. A short batch isn't remembered: it belongs at an epoch's end."""
        size = self._size(iterator)
        if size and type(index) is list and len(index) >= size:
            self.before.append(list(index))

    def take(self, iterator: LoaderIterator) -> list[object] | None:
        """The index that the script's own iterator would ask for next; none where it has asked for its last ones, and
        has batches on their way: one of these isn't waited for then. None where the batch that is due is an epoch's
        short one: ``own_batch`` gives it. Raises ``StopIteration`` after the last one.
        """
        waits = 0
        with suppress(StopIteration):
            index = next(vars(iterator)["_sampler_iter"])
            size = self._size(iterator)
            if not (type(index) is list and size and len(index) < size):
                self.given_out(iterator, index)
                return [list(index) if type(index) is list else index]
            self._give_back(iterator, [index])
            waits = 1
        skipped = self._skipped.get(iterator, 0)
        left = _on_their_way(iterator) - skipped + waits
        if left <= 0:
            self._end_epoch(iterator)
        if left == 1 and (waits or self._ends_short(iterator)):
            return None
        self._skipped[iterator] = skipped + 1
        return []

    def put_back(self, iterator: LoaderIterator, taken: list[object]) -> None:
        """What was taken isn't used."""
        self._give_back(iterator, taken)
        if not taken:
            self._skipped[iterator] -= 1

    def own_batch(self, original: Callable[[LoaderIterator], Result], iterator: LoaderIterator) -> Result:
        """The next one of the script's own: what is on its way in whose place others were given is dropped."""
        for _ in range(self._skipped.pop(iterator, 0)):
            original(iterator)
            self._dropped(iterator)
        return original(iterator)

    def _give_back(self, iterator: LoaderIterator, indices: list[object]) -> None:
        vars(iterator)["_sampler_iter"] = chain(indices, vars(iterator)["_sampler_iter"])

    def _end_epoch(self, iterator: LoaderIterator) -> None:
        self._skipped.pop(iterator, None)
        if isinstance(iterator, WorkersIterator) and not vars(iterator).get("_persistent_workers"):
            iterator._shutdown_workers()
        raise StopIteration

    def _sampler(self, loader: DataLoader | None) -> Any:
        """PyTorch's own BatchSampler, whose batches have one size, the last one aside; None where there is none."""
        found: Any = getattr(loader, "_index_sampler", None)
        return found if type(found) is self._torch.utils.data.BatchSampler else None

    def _size(self, iterator: LoaderIterator) -> int:
        """Of its whole batches; 0 where that isn't known."""
        sampler = self._sampler(self._loader_of(iterator))
        return int(sampler.batch_size) if sampler is not None else 0

    def _ends_short(self, iterator: LoaderIterator) -> bool:
        sampler = self._sampler(self._loader_of(iterator))
        return sampler is not None and not sampler.drop_last and len(sampler.sampler) % sampler.batch_size > 0


def _on_their_way(iterator: LoaderIterator) -> int:
    """Batches that the script's own workers were asked for, and that it hasn't got."""
    return iterator._send_idx - iterator._rcvd_idx if isinstance(iterator, WorkersIterator) else 0
