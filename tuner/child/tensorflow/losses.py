"""The losses of a loop of the script's own beyond the first one, in a screen: a GAN takes gradients of several."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

from ..session import Session
from ..watch import Watch
from .counters import Counters, Counts
from .entries import TracedFunction
from .functions import outermost
from .replicas import current
from .types import Graph, Tensor

_MOST = 15


class OtherLosses:
    """By the place in the script where their gradients are taken; in a graph they are counted by the graph itself."""

    def __init__(self, session: Session, tf: ModuleType) -> None:
        self._tf = tf
        self._looks = session.request.seed is not None and session.measuring and session.uses(Watch.LOSSES)
        self._counted: dict[str, Counters] = {}
        self._taken: dict[str, Counts] = {}
        self._eager: dict[str, list[Tensor]] = {}
        self._traced: Counter[tuple[int, object, str]] = Counter()
        self._graphs: list[Graph] = []

    def numbered(self, site: str) -> str:
        """The place of a gradient that is being traced, with its number where several of a graph have the same.

        AutoGraph's code lies in no file of the user's: all that a function takes seems to be taken where it is called.
        """
        if not self._looks:
            return site
        graph = outermost(self._tf)
        self._graphs = [*self._graphs, graph][-_MOST:]  # one that took its place would bear its number
        replica = current(self._tf)
        key = (id(graph), (replica.tracer, replica.number), site)
        self._traced[key] += 1
        return site if self._traced[key] == 1 else f"{site}#{self._traced[key]}"

    def traced(self, entry: TracedFunction | None, target: object, site: str) -> None:
        """A gradient of ``target`` is being traced at ``site``, in the outermost function ``entry``."""
        if entry is None or not self._looks or not isinstance(target, self._tf.Tensor):
            return
        replica = current(self._tf)
        if site == entry.leading_site or replica.tracer != entry.leading_tracer or not self._has_room(site):
            return
        if replica.number is not None:
            self._counted.setdefault(site, Counters(self._tf)).add(loss=target, is_part=replica.is_further)

    def seen(self, target: object, site: str) -> None:
        """A gradient of ``target`` was taken eagerly at ``site``."""
        if self._looks and isinstance(target, self._tf.Tensor) and self._has_room(site):
            self._eager.setdefault(site, []).append(target)

    def _has_room(self, site: str) -> bool:
        known = {*self._counted, *self._eager}
        return site in known or len(known) < _MOST

    def take(self) -> dict[str, float]:
        """Place → the mean since the last time; waits for the device."""
        eager, self._eager = self._eager, {}
        means = {
            site: sum(float(self._tf.reduce_mean(part)) for part in parts) / len(parts) for site, parts in eager.items()
        }
        for site, counters in self._counted.items():
            before, now = self._taken.get(site, Counts()), counters.read()
            self._taken[site] = now
            if now.losses > before.losses:
                means[site] = (now.loss_sum - before.loss_sum) / (now.losses - before.losses)
        return means
