"""How many samples a pipeline of tf.data makes at once beside the loop, by the model that TensorFlow keeps of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from ...making import NEWEST
from ...resting import THREADS_REST, OwnThreads
from ..types import ModelProto

BATCHING = ("BatchV2", "ParallelBatch", "PaddedBatchV2", "MapAndBatch")
"""Nodes that make a batch of several samples."""
_ASYNCHRONOUS = (2, 4, 6)
"""Classes of nodes that make their elements, and have those below make theirs, in threads of their own."""


class AtWork:
    """Of the iterator that training fetches from: what it was seen to work on in the newest looks, once a block.

    A node's time holds what its function waits for, and none for which it waits itself.
    """

    def __init__(self) -> None:
        self._threads = OwnThreads()
        self._worked: dict[tuple[int, bool], float] = {}
        self._sums = deque[tuple[float, float, float]](maxlen=NEWEST + 1)
        """At each look the time, and the seconds that were worked so far: on whole batches, and on parts of them."""

    def begins_anew(self) -> None:
        """Another iterator is looked at from here on."""
        self._worked = {}

    def _look(self, model: ModelProto) -> None:
        now = {(key, is_whole): seconds for key, is_whole, seconds in _worked(model)}
        _, *sums = self._sums[-1] if self._sums else (0.0, 0.0, 0.0)
        # A node of what is interleaved goes with its data, and what it worked on has been counted.
        for (key, is_whole), seconds in now.items():
            sums[not is_whole] += max(0.0, seconds - self._worked.get((key, is_whole), 0.0))
        self._worked = now
        self._sums.append((time.monotonic(), sums[0], sums[1]))

    def samples(self, model: ModelProto, batch_size: int, computing: float) -> float:
        """Samples that were being made at once, on average, in batches of that size; 0 where their threads don't rest,
        and at the first look. ``computing``: as ``OwnThreads.share`` takes it.
        """
        self._look(model)
        (since, *before), (now, *sums) = self._sums[0], self._sums[-1]
        if now <= since:
            return 0.0
        batches, parts = ((after - first) / (now - since) for first, after in zip(before, sums, strict=True))
        rests = self._threads.share(batches + parts, computing) > THREADS_REST
        return batches * max(1, batch_size) + parts if rests else 0.0


def _worked(model: ModelProto) -> Iterator[tuple[int, bool, float]]:
    """Of each node that works beside the loop its key, whether its elements are whole batches, and its seconds."""
    waiting = [(model.output, True, False)]
    while waiting:
        key, is_whole, is_beside = waiting.pop()
        node = model.nodes[key]
        is_whole = is_whole and node.name not in BATCHING
        is_beside = is_beside or node.node_class in _ASYNCHRONOUS
        if is_beside:
            yield key, is_whole, node.processing_time / 1e9
        waiting += [(below, is_whole, is_beside) for below in node.inputs]
