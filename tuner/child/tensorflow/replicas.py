"""Replicas of a strategy, each of which traces a step of its own: which one does, and what becomes of their losses."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from ..patches import patch
from .types import Result


class Replica(NamedTuple):
    """One ``of`` so many; ``number`` is None where the graph alone knows it, as on a TPU."""

    number: int | None
    of: int

    @property
    def is_alone(self) -> bool:
        """Whether the loss that it has is the whole one."""
        return self.of == 1

    @property
    def is_further(self) -> bool:
        """Whether another one stands for the step that both take."""
        return bool(self.number)

    @property
    def tracer(self) -> int:
        """What tells apart those who trace at once. Replicas are alike: their threads may be new with each call."""
        return threading.get_ident() if self.is_alone or self.number is None else -1


def current(tf: ModuleType) -> Replica:
    """The replica that traces now."""
    context: Any = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return Replica(0, 1)
    number = getattr(context, "_replica_id_in_sync_group", None)
    return Replica(number if isinstance(number, int) else None, context.num_replicas_in_sync)


class ReductionWatch:
    """Patches ``Strategy.reduce``. ``averaged``: told of each tensor that a graph takes the mean of over replicas."""

    def __init__(self, tf: ModuleType, averaged: Callable[[object], object]) -> None:
        self._tf = tf
        self._averaged = averaged

    def install(self) -> None:
        """Patches all strategies."""
        patch(sys.modules["tensorflow.python.distribute.distribute_lib"].StrategyBase, "reduce", self._reduce)

    def _reduce(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def reduce(strategy: object, reduce_op: object, value: object, *args: object, **kwargs: object) -> Result:
            tf = self._tf
            if str(getattr(reduce_op, "value", reduce_op)).upper() == "MEAN" and not tf.executing_eagerly():
                for leaf in tf.nest.flatten(value):
                    self._averaged(leaf.values[0] if isinstance(leaf, tf.distribute.DistributedValues) else leaf)
            return original(strategy, reduce_op, value, *args, **kwargs)

        reduce.autograph_info__ = {}  # type: ignore[attr-defined]  # a function takes any attribute
        return reduce
