"""Ends iterators of tf.data beside the training, where trials take turns: in their place the end may come late.

An iterator waits in its end for the thread that tunes it, and TensorFlow may lose the word that wakes that thread: it
tells it before it has noted that all is cancelled, so that a thread which looks in between sleeps on, until it would
have tuned next (TensorFlow 2.16 to 2.21). Short epochs then begin up to a second late, by chance, where threads are
held and woken all the time: in 19 of 39 epochs of 1 s by turns, in 1 of 39 where iterators end beside the training.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from types import ModuleType

from ...patches import patch
from ...session import Session
from ..types import Dataset

MOST_WAITING = 1
"""Iterators that wait while another one ends: each may hold a full buffer. All others end where they are let go."""
LONGEST_S = 5.0
"""So long the end of the process waits for those that are under way."""

Held = list[object]
"""The resource of an iterator, which ends with the last reference to it; empty once that is gone."""


class IteratorEnds:
    """Has a thread of its own drop the resources of the iterators that the script lets go."""

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self._session = session
        self._tf = tf
        self._let_go: SimpleQueue[Held | None] = SimpleQueue()  # put to by whatever collects garbage, within any call
        self._thread: threading.Thread | None = None
        self._has_ended = False

    def install(self) -> None:
        """Patches what makes the resource of an iterator."""
        patch(sys.modules["tensorflow.python.data.ops.iterator_ops"].OwnedIterator, "_create_iterator", self._create)

    def _create(self, original: Callable[[object, Dataset], None]) -> Callable[[object, Dataset], None]:
        def _create_iterator(iterator: object, dataset: Dataset) -> None:
            original(iterator, dataset)
            if self._session.here and self._tf.executing_eagerly():
                self._start()
                held: Held = [iterator._iterator_resource]  # type: ignore[attr-defined]  # just made
                weakref.finalize(iterator, self._is_gone, held).atexit = False

        return _create_iterator

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._drop, daemon=True, name="autotune-iterator-ends")
            self._thread.start()
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
        self._let_go.put(None)
        if self._thread is not None:
            self._thread.join(LONGEST_S)
