"""The batches that one traced function fetches by itself: how many samples each fetch gave, and which trained.

A graph may fetch one batch to train on and another one to validate on. What a gradient is taken of is seen while it is
traced: the loss leads back to what was fetched in the same graph, or it doesn't.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from .counters import Counters
from .types import Graph, Structure, Tensor


class _Place:
    """Stands for a graph, which isn't kept alive."""


@dataclass
class _Fetch:
    """One place in the graphs where a batch is fetched; ``key`` is that of its source, None where it isn't known.

    ``place``: where it was traced last, and ``operations``: their names, that give it there.
    """

    counters: Counters
    place: _Place
    key: str | None = None
    operations: set[str] = field(default_factory=set)
    trains: bool = False
    taken: float = 0.0


class Fetches:
    """Those of one function. What isn't sure to train beside another one that does counts, as it did."""

    def __init__(self, tf: ModuleType) -> None:
        self.tf = tf
        self._of: dict[tuple[str, int], _Fetch] = {}  # by its line, and which one there it is
        self._places: weakref.WeakKeyDictionary[Graph, _Place] = weakref.WeakKeyDictionary()
        self.samples = 0.0
        """Of those that train, as of the last time they were read."""

    def traced(
        self, element: Structure, rows: Tensor | int, site: str, key: str | None, *, trains: bool = False
    ) -> None:
        """An element is fetched in the graph that is being built; ``trains``: a gradient was taken of it before."""
        place = self._place(self.tf.compat.v1.get_default_graph())
        number = sum(fetch.place is place and line == site for (line, _), fetch in self._of.items())
        fetch = self._of.setdefault((site, number), _Fetch(Counters(self.tf), place))
        fetch.place, fetch.key, fetch.trains = place, key, trains
        tensors = self.tf.nest.flatten(element, expand_composites=True)
        fetch.operations = {tensor.op.name for tensor in tensors if isinstance(tensor, self.tf.Tensor)}
        fetch.counters.add_batch(rows)

    def gradient_traced(self, target: Structure) -> None:
        """A gradient is taken of ``target`` in the graph that is being built."""
        tensors = [each for each in self.tf.nest.flatten(target) if isinstance(each, self.tf.Tensor)]
        waiting: list[Any] = [tensor.op for tensor in tensors if hasattr(tensor, "graph")]
        here = [fetch for fetch in self._of.values() if waiting and fetch.place is self._place(waiting[0].graph)]
        seen: set[str] = set()
        while waiting and not all(fetch.trains for fetch in here):
            operation = waiting.pop()
            if operation.name not in seen:
                seen.add(operation.name)
                for fetch in here:
                    fetch.trains |= operation.name in fetch.operations
                waiting += [tensor.op for tensor in operation.inputs]

    def read(self) -> float:
        """Samples that trained since the last time. Waits for the device."""
        found = 0.0
        for fetch in self._of.values():
            before, fetch.taken = fetch.taken, fetch.counters.read().samples
            found += fetch.taken - before if self._counts(fetch) else 0.0
        self.samples += found
        return found

    @property
    def largest(self) -> int:
        """Samples in the largest batch that trained; 0 where none was counted."""
        return max((fetch.counters.largest for fetch in self._of.values() if self._counts(fetch)), default=0)

    @property
    def apart(self) -> set[str]:
        """Keys of the sources of which nothing trains."""
        counting = {fetch.key for fetch in self._of.values() if self._counts(fetch)}
        return {fetch.key for fetch in self._of.values() if fetch.key is not None} - counting

    def _counts(self, fetch: _Fetch) -> bool:
        return fetch.trains or not any(other.trains and other.place is fetch.place for other in self._of.values())

    def _place(self, graph: Graph) -> _Place:
        return self._places.setdefault(graph, _Place())
