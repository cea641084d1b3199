"""Batches that a model's optimizer has counted itself: no step of a call is hidden by what an epoch should have."""

from __future__ import annotations

import sys

from .model import inner_optimizer
from .types import KerasOptimizer, Model


class UpdateWatch:
    """Of all calls of ``fit`` together. With JAX an epoch's state is elsewhere while it trains: not asked there.

    ``is_unread``: whether an optimizer was asked for its count, and it couldn't be read.
    """

    def __init__(self) -> None:
        self.is_unread = False
        self._counted = 0
        self._optimizer: KerasOptimizer | None = None
        self._before = 0

    def call_begins(self, model: Model) -> None:
        """The training function is about to be called; what a callback has loaded is there by the first time."""
        if self._optimizer is None and model.optimizer is not None:
            before = _iterations(inner_optimizer(model))
            self.is_unread = self.is_unread or before is None
            if before is not None:
                self._optimizer, self._before = inner_optimizer(model), before

    def fit_ended(self) -> None:
        """The script's call of ``fit`` has returned, or raised."""
        self._counted, self._optimizer = self.counted, None

    @property
    def counted(self) -> int:
        """Batches so far. Reading waits for the steps that are under way."""
        now = None if self._optimizer is None else _iterations(self._optimizer)
        self.is_unread = self.is_unread or (self._optimizer is not None and now is None)
        return self._counted if now is None else self._counted + now - self._before


def _iterations(optimizer: KerasOptimizer) -> int | None:
    """None where the count can't be read: of some strategies, or behind an error of the device."""
    try:
        return int(sys.modules["keras"].ops.convert_to_numpy(optimizer._iterations))
    except Exception:
        return None
