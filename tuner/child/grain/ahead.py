"""Batches that a thread of Grain's makes, and puts on the device, before the loop asks for them: "device_prefetch".

The thread is Grain's own (``ThreadPrefetchIterDataset``): it makes the same batches in the same order, and where the
iterator stands is told as of the batch that the loop was given last.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from ..session import Session
from . import PUT_AHEAD, workers
from .pipeline import Dataset, Pipeline, parts_of
from .places import GrainSource

OWN = "the script reads ahead by a thread of Grain's itself"
BY_WORKERS = "its workers make batches ahead already"
NO_FRAMEWORK = "no framework is there that puts batches on a device"
CHANGES = "{} changes while the data are read, and would be read before"
OBJECTS = "its batches hold {}, which may be changed while they lie ready"
LOOKS = 64
"""Batches of the script as written whose parts are looked at."""
_THREAD = "ThreadPrefetch"
_PREFETCH = "grain._src.python.dataset.transformations.prefetch"
Put = Callable[[Any], Any]
Begin = tuple[Callable[[Dataset], Dataset], Callable[[Dataset], Any]]


def why_not(shape: Pipeline, parts: Mapping[str, object]) -> str:
    """Why a thread can't make its batches ahead, as far as the pipeline shows it; "" where it can."""
    if any(type(node).__name__.startswith(_THREAD) for node in (*shape.above, *shape.chain)):
        return OWN
    if shape.workers:
        return BY_WORKERS
    return workers.why_here(parts)


def ahead_of(dataset: Dataset, count: int, put: Put) -> Dataset:
    """The same dataset, of which so many elements are made and put ahead."""

    def put_ahead(element: Any) -> Any:
        return put(element)

    made = sys.modules[_PREFETCH].ThreadPrefetchIterDataset(dataset.map(put_ahead), prefetch_buffer_size=count)
    made.has_child = False  # Grain looks at the outermost node of a pipeline only
    return made


def thread_of(iterator: Any) -> Any:
    """The iterator that has the thread, of what ``ahead_of`` made; None of any other."""
    outermost = getattr(iterator, "_iterator", iterator)
    parent = getattr(outermost, "_maybe_nonnative_parent", None)
    is_ours = getattr(getattr(parent, "_map_fn", None), "__module__", "") == __name__
    return outermost if is_ours else None


def depth(iterator: Any) -> int:
    """How many elements it keeps ahead; 0 where the loop makes each itself."""
    thread = thread_of(iterator)
    return int(thread._target_prefetch_buffer_size) if thread is not None else 0


def _script_frame(folders: tuple[str, ...]) -> FrameType | None:
    """The innermost frame of a call that led here which is in none of these folders: ours, and Grain's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(folders):
        frame = frame.f_back
    return frame


class AheadWatch:
    """Of one trial. ``wanted``: how many batches the config has made ahead."""

    def __init__(self, session: Session, folder: str, wanted: int) -> None:
        self._session = session
        self.wanted = wanted
        self._folders = (os.path.dirname(os.path.dirname(__file__)) + os.sep, folder)
        self._shapes: dict[str, str] = {}

    def count(self, source: GrainSource, *, adds: bool) -> int:
        """How many are made ahead of an iteration that the script begins now; why none may be is noted.

        ``adds``: whether the config has workers make them.
        """
        if not (self.wanted or self._session.is_as_written):
            return 0
        why = "" if PUT_AHEAD in source.refused else self._why_not(source)
        if why:
            source.refused[PUT_AHEAD] = why
        return 0 if adds or PUT_AHEAD in source.refused else self.wanted

    def _why_not(self, source: GrainSource) -> str:
        putting, shape, frame = self._session.feeds.putting, source.pipeline, _script_frame(self._folders)
        if putting is None or shape is None or frame is None:
            return NO_FRAMEWORK
        if source.key not in self._shapes:
            self._shapes[source.key] = why_not(shape, parts_of(shape))
        return self._shapes[source.key] or putting.why_not(frame)

    def of_dataset(self, source: GrainSource, made: Dataset, count: int, begin: Begin, written: Dataset) -> Any:
        """An iterator of a dataset, by Grain's outermost node of the kind and the function that ``begin`` has.

        ``made``: the dataset of which batches are made ahead; ``written``: what is iterated otherwise.
        """
        kind, iterate = begin
        if count:
            iterator = self._begun(source, lambda: iterate(kind(ahead_of(made, count, self._put))))
            if iterator is not None:
                return iterator
        return iterate(written)

    def of_loader(self, source: GrainSource, loader: Any, count: int, iterate: Callable[[Any], Any]) -> Any:
        """The same of a loader, which iterates its dataset."""
        if not count:
            return iterate(loader)
        dataset = loader._dataset

        def begin() -> Any:
            loader._dataset = ahead_of(dataset, count, self._put)
            try:
                return iterate(loader)
            finally:
                loader._dataset, dataset.has_child = dataset, False

        iterator = self._begun(source, begin)
        return iterator if iterator is not None else iterate(loader)

    def _begun(self, source: GrainSource, begin: Callable[[], Any]) -> Any:
        """None where Grain's thread can't read it: it asks where the iterator stands, which not every one tells."""
        try:
            iterator = begin()
        except Exception as error:
            source.refused[PUT_AHEAD] = f"Grain's thread can't read it: {type(error).__name__}: {error}"
            return None
        source.changed.add(PUT_AHEAD)
        return iterator

    def _put(self, element: Any) -> Any:
        putting = self._session.feeds.putting
        return element if putting is None else putting.put(element)

    def look(self, source: GrainSource, element: Any) -> None:
        """At what the script as written is given."""
        if not self._session.is_as_written or PUT_AHEAD in source.refused:
            return
        unknown = _unknown_in(element) if source.fetches <= LOOKS else ""
        if unknown:
            source.refused[PUT_AHEAD] = OBJECTS.format(unknown)


def _unknown_in(element: Any) -> str:
    """The type of a part that may be changed once it was given; "" where there are arrays, numbers and text alone."""
    if isinstance(element, dict):
        return next(filter(None, map(_unknown_in, element.values())), "")
    if isinstance(element, (list, tuple)):
        return next(filter(None, map(_unknown_in, element)), "")
    kind = type(element)
    is_fixed = element is None or kind in (bool, int, float, complex, str, bytes) or kind.__module__ == "numpy"
    return "" if is_fixed or hasattr(element, "sharding") else kind.__name__
