"""Updates that Keras' loss scaling skips: a gradient of theirs had overflowed."""

from __future__ import annotations

from ..counts import ScalerCounts
from .model import inner_optimizer
from .types import KerasOptimizer, Model

FIRST_STEPS = 20
"""The scale is found by skipping steps; how many are skipped after these says whether the format bears the model."""


class LossScaleWatch:
    """Of the first model whose loss is scaled; what its optimizer counts, it has not skipped.

    It is read at the beginning, once on the way and at the end: on a GPU every look waits for the device.
    """

    def __init__(self) -> None:
        self._optimizer: KerasOptimizer | None = None
        self._before = 0
        self._early = (0, 0)

    def begin(self, model: Model) -> None:
        """The model is about to be trained."""
        if self._optimizer is None and inner_optimizer(model) is not model.optimizer:
            self._optimizer = inner_optimizer(model)
            self._before = self._counted()

    def stepped(self, steps: int) -> None:
        """So many steps were taken so far."""
        if self._optimizer is not None and not self._early[0] and steps >= FIRST_STEPS:
            self._early = (steps, steps - self._counted())

    def counts(self, steps: int) -> ScalerCounts | None:
        """Of so many steps; None where no loss is scaled."""
        if self._optimizer is None or not steps:
            return None
        skipped = max(0, steps - self._counted())
        early, early_skipped = self._early if self._early[0] else (steps, skipped)
        return ScalerCounts(steps, skipped, steps - early, max(0, skipped - early_skipped))

    def _counted(self) -> int:
        assert self._optimizer is not None
        return int(self._optimizer._iterations.numpy()) - self._before
