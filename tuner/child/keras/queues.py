"""What lies ready for ``Model.fit``: in a pipeline of tf.data, and in the queue of a PyDataset's workers."""

from __future__ import annotations

import multiprocessing
import sys
import weakref
from collections.abc import Callable
from queue import Queue
from typing import Any, TypeVar

from ..patches import patch
from ..resting import RESTS, THREADS_REST, OwnThreads, Rest
from ..tensorflow.data.ready import ReadyWatch
from ..tensorflow.types import DatasetIterator
from .types import Enqueuer

Result = TypeVar("Result")


class FitQueues:
    """Of the current call of ``fit``. ``pydataset``: what feeds it, None where that is none.

    ``is_dataset``: whether one of tf.data feeds it; ``pipeline``: of what does, None where it isn't iterated yet.
    """

    def __init__(self, pipeline: ReadyWatch | None) -> None:
        self.pipeline = pipeline
        self.pydataset: object = None
        self.is_dataset = False
        self._enqueuer: Callable[[], Enqueuer | None] = lambda: None
        self._is_new = False
        self._left_over = 0
        self._rest, self._threads = Rest(), OwnThreads()

    def install(self) -> None:
        """Patches the beginning of each iteration in which workers prepare a PyDataset's batches."""
        module = sys.modules["keras.src.trainers.data_adapters.py_dataset_adapter"]
        owner = next(cls for cls in module.OrderedEnqueuer.__mro__ if "start" in cls.__dict__)
        patch(owner, "start", self._start)

    def _start(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def start(enqueuer: Enqueuer, *args: object, **kwargs: object) -> Result:
            if enqueuer.py_dataset is self.pydataset:
                self._enqueuer, self._is_new = weakref.ref(enqueuer), True
            return original(enqueuer, *args, **kwargs)

        return start

    def fetches_from(self, iterator: DatasetIterator) -> None:
        """Training fetches from this iterator: its function on TensorFlow, Keras in Python on the other backends."""
        if self.pipeline is None:
            self.pipeline = ReadyWatch(sys.modules["tensorflow"])
        self.pipeline.fetches_from(iterator)

    def samples(self, batch_size: int) -> float | None:
        """Samples that lie ready, in batches of that size; None where that can't be seen."""
        enqueuer = self._enqueuer()
        if enqueuer is None or enqueuer.py_dataset is not self.pydataset:
            return self.pipeline.samples(batch_size) if self.pipeline is not None else None
        is_new, self._is_new = self._is_new, False
        self._left_over = max(self._left_over, _left_over(enqueuer))
        ready = _ready_batches(enqueuer)
        return None if ready is None or is_new else float(ready * batch_size)

    def at_work(self, batch_size: int, computing: float) -> float:
        """Samples that are being made at once by what rests; see ``Feed.at_work``."""
        enqueuer = self._enqueuer()
        if enqueuer is None or enqueuer.py_dataset is not self.pydataset:
            return self.pipeline.at_work(batch_size, computing) if self.pipeline is not None else 0.0
        data: Any = enqueuer.py_dataset
        if data.use_multiprocessing:
            rests = self._rest.share(each.pid for each in multiprocessing.active_children()) > RESTS
        else:
            rests = self._threads.share(data.workers, computing) > THREADS_REST
        return float(data.workers * batch_size) if rests else 0.0

    @property
    def begins_as_taken(self) -> bool:
        """As ``TurnGiver.begins_as_taken``: what is made and what lies ready are as many together as the queue holds,
        or as calls of tf.data run in parallel.
        """
        data: Any = self.pydataset
        return data is None or data.max_queue_size < 2 * data.workers

    @property
    def is_unseen(self) -> bool:
        """Whether nothing shows what lies ready in the pipeline of a dataset."""
        return self.pipeline is None or self.pipeline.is_unseen

    def capacity(self, batch_size: int) -> int:
        """Batches that can lie ready; 0 where that isn't known."""
        enqueuer = self._enqueuer()
        if enqueuer is None or enqueuer.py_dataset is not self.pydataset:
            return self.pipeline.capacity(batch_size) if self.pipeline is not None else 0
        queue: object = getattr(enqueuer, "future_queue", None)  # by another name in a version to come
        return queue.maxsize + self._left_over if isinstance(queue, Queue) else 0


def _left_over(enqueuer: Enqueuer) -> int:
    """Batches of an iteration that was broken off."""
    return enqueuer.ready_queue.qsize() if hasattr(enqueuer, "ready_queue") else 0


def _ready_batches(enqueuer: Enqueuer) -> int | None:
    """By Keras' own bookkeeping (3.8 to 3.15); None once all batches of an epoch have been asked for.

    None as well while some are left of an iteration that Keras broke off, as it does to learn what a batch looks like:
    these are taken first, and the workers stand still meanwhile, which says nothing of how fast they are.
    """
    try:
        if not enqueuer.run_thread.is_alive() or _left_over(enqueuer):
            return None
        return sum(bool(future.ready()) for future in list(enqueuer.future_queue.queue))
    except (AttributeError, TypeError, RuntimeError):
        return None  # another version's, an error that is passed on, a queue that changed meanwhile
