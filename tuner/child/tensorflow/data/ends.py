"""Ends iterators of tf.data beside the training, where trials take turns: in their place the end may come late.

An iterator waits in its end for the thread that tunes it, and that may sleep on until it would have tuned next, as if
the word that wakes it were lost (seen with TensorFlow 2.21; none is late with that tuning off). Short epochs then begin
up to a second late, by chance, most where threads are held and woken all the time: 19 of 39 epochs of 1 s by turns, and
1 of 39 where iterators end beside the training.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from ...patches import patch
from ...session import Session
from ..types import Dataset
from .caches import made_of, operations

MOST_ENDING, MOST_WAITING = 2, 1
"""Iterators that end at once, and that wait while these do: each may hold a full buffer. Others end in their place."""
LONGEST_S = 5.0
"""So long the end of the process waits for those that are under way."""

_SHARED = ("Generator", "Snapshot", "Save")
"""Parts of the names of datasets whose iterators share a file or a generator of the script's with the next one."""
Held = list[object]
"""The resource of an iterator, which ends with the last reference to it; empty once that is gone."""


class IteratorEnds:
    """Has threads of its own drop the resources of the iterators that the script lets go."""

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self._session = session
        self._tf = tf
        self._let_go: SimpleQueue[Held | None] = SimpleQueue()  # put to by whatever collects garbage, within any call
        self._threads: list[threading.Thread] = []
        self._has_ended = self._in_place = False
        self._apart: weakref.WeakKeyDictionary[Dataset, bool] = weakref.WeakKeyDictionary()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Iterators that begin meanwhile end where they are let go."""
        self._in_place = True
        try:
            yield
        finally:
            self._in_place = False

    def install(self) -> None:
        """Patches what makes the resource of an iterator."""
        patch(sys.modules["tensorflow.python.data.ops.iterator_ops"].OwnedIterator, "_create_iterator", self._create)

    def _create(self, original: Callable[[object, Dataset], None]) -> Callable[[object, Dataset], None]:
        def _create_iterator(iterator: object, dataset: Dataset) -> None:
            original(iterator, dataset)
            may_end_apart = self._session.here and not self._in_place and self._tf.executing_eagerly()
            if may_end_apart and self._is_apart(dataset):
                self._start()
                held: Held = [iterator._iterator_resource]  # type: ignore[attr-defined]  # just made
                weakref.finalize(iterator, self._is_gone, held).atexit = False

        return _create_iterator

    def _is_apart(self, dataset: Dataset) -> bool:
        if dataset not in self._apart:
            self._apart[dataset] = ends_apart(dataset)
        return self._apart[dataset]

    def _start(self) -> None:
        if not self._threads:
            for _ in range(MOST_ENDING):
                self._threads.append(threading.Thread(target=self._drop, daemon=True, name="autotune-iterator-ends"))
                self._threads[-1].start()
            atexit.register(self._end)

    def _is_gone(self, held: Held) -> None:
        """An iterator is gone: its resource ends with this call, unless it may wait."""
        if self._session.here and not self._has_ended and self._let_go.qsize() < MOST_WAITING:
            self._let_go.put(held)

    def _drop(self) -> None:
        while (held := self._let_go.get()) is not None:
            held.clear()

    def _end(self) -> None:
        self._has_ended = True
        for _ in self._threads:
            self._let_go.put(None)
        until = time.monotonic() + LONGEST_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def ends_apart(dataset: Dataset) -> bool:
    """Whether an iteration over the dataset may begin before the last one has ended: it shares nothing with that but
    the data. One that fills a cache's file locks that, a generator may hold whatever it has opened, and so may
    functions of Python.
    """
    return not any(map(_shares, made_of(dataset)))


def _shares(made: Dataset) -> bool:
    kind = type(made).__name__
    if any(part in kind for part in _SHARED) or (kind == "CacheDataset" and _has_file(made)):
        return True
    return any("PyFunc" in name for name in operations(made))


def _has_file(cache: Dataset) -> bool:
    """Whether a cache lies in a file; where that can't be read it may."""
    filename: Any = getattr(cache, "_filename", None)
    return not hasattr(filename, "numpy") or bool(filename.numpy())
