"""How long the loop waits for its DataLoaders: once for those that read each other, and as the device sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import ModuleType

from ..session import Session
from .batches import tokens_of
from .loader_places import Fetched, Loader
from .types import LoaderIterator, Result


class FetchWaits:
    """Takes the time of fetches. Where the device runs behind the loop it may still be busy meanwhile, so that marks
    are put into what it has been given, before a fetch and after it.
    """

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self._session = session
        self._torch = torch
        self._marks: list[tuple[object, object, float]] = []
        self._threads: set[int] = set()
        """Those that wait for a loader: another one that it reads takes no time beside it."""

    def of(self, fetch: Callable[[], Fetched[Result]], *, marked: bool) -> tuple[Fetched[Result], float]:
        """What ``fetch`` gives, and the seconds that the loop waits for it, as far as they are known by now: those of a
        ``marked`` one are told by ``take``.
        """
        thread = threading.get_ident()
        if thread in self._threads:
            return fetch(), 0.0
        self._threads.add(thread)
        try:
            before = self._mark() if marked else None
            fetched = fetch()
            after = self._mark() if before is not None else None
        finally:
            self._threads.discard(thread)
        if before is None or after is None:
            return fetched, fetched.wait_s
        self._marks.append((before, after, fetched.wait_s))
        return fetched, 0.0

    def take(self) -> float:
        """Seconds in which a device that runs behind the loop had nothing to do while the loop waited for its data.

        Those since the last call, which the device has to be through with.
        """
        waits = [min(wait_s, self._session.device.torch_seconds(*marks)) for *marks, wait_s in self._marks]
        self._marks.clear()
        return sum(waits)

    def _mark(self) -> object | None:
        return self._session.device.torch_mark(self._torch)


def unwatched(
    torch: ModuleType, original: Callable[[LoaderIterator], Result], iterator: LoaderIterator, entry: Loader,
    samples_of: Callable[[Loader, LoaderIterator, Result], int],
) -> Result:  # fmt: skip
    """The next batch, while the instruments are off: what a loader has given is known all the same."""
    began = time.perf_counter()
    try:
        batch = original(iterator)
    except StopIteration:
        entry.ended = True
        raise
    entry.count(samples_of(entry, iterator, batch), tokens_of(torch, batch) if entry.tokens else 0)
    if entry.is_beginning:
        entry.start_ends(time.perf_counter() - began)
    return batch
