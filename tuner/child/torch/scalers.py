"""Optimizer steps that a gradient scaler skips, ours or the script's own: their gradients had overflowed."""

from __future__ import annotations

from collections.abc import Callable

from ..counts import ScalerCounts
from .types import GradScaler, Result, Tensor

FIRST_STEPS = 20
"""A scaler finds its scale by skipping steps; how many it skips after these says whether the format bears the model."""


class ScalerWatch:
    """Counts by what the scaler itself found. Read once a block: on a GPU every look waits for the device."""

    def __init__(self) -> None:
        self.steps = 0
        self.skipped = 0
        self.late_skipped = 0
        self._found: list[Tensor] = []

    @property
    def begun(self) -> bool:
        """Whether a scaler was through with a step already."""
        return bool(self.steps or self._found)

    def watched(self, update: Callable[..., Result]) -> Callable[..., Result]:
        """``GradScaler.update``, which ends a step and forgets what it found in it."""

        def run(scaler: GradScaler, *args: object, **kwargs: object) -> Result:
            found = _found_by(scaler)
            result = update(scaler, *args, **kwargs)
            if found is not None:
                self._found.append(found)
            return result

        return run

    def settle(self) -> None:
        """Counts the steps since the last time."""
        found, self._found = self._found, []
        for overflowed in found:
            skipped = float(overflowed) > 0
            self.skipped += skipped
            self.late_skipped += skipped and self.steps >= FIRST_STEPS
            self.steps += 1

    def counts(self) -> ScalerCounts | None:
        """What was counted; None where no scaler was through with a step."""
        late = max(0, self.steps - FIRST_STEPS)
        return ScalerCounts(self.steps, self.skipped, late, self.late_skipped) if self.steps else None


def _found_by(scaler: GradScaler) -> Tensor | None:
    """The tensor that tells of overflow in this step: of several optimizers, ``update`` adds the others' to the first.

    Comparing the scale before and after would do without the scaler's own state, and wait for the GPU twice a step.
    """
    for state in getattr(scaler, "_per_optimizer_states", {}).values():
        overflowed: Tensor
        for overflowed in state["found_inf_per_device"].values():
            return overflowed
    return None
