"""The training loss under Keras since it was last read: Keras' own figure is a mean over the epoch so far."""

from __future__ import annotations

from typing import SupportsFloat

from .types import Model
from .watches import Watches


class LossReader:
    """Reads the metric in which Keras, or the model's own training step, holds the loss of an epoch."""

    def __init__(self) -> None:
        self._before = (0.0, 0.0)

    def epoch_begins(self) -> None:
        """The metric begins anew."""
        self._before = (0.0, 0.0)

    def read(self, watches: Watches) -> float | None:
        """The mean since the last time, else what the step has returned; None where there is neither."""
        fits, loops = watches.fits, watches.loops
        if fits is None or fits.call is None or not fits.steps.logs:
            by_batch = fits.on_batch.take_loss() if fits is not None else None
            return loops.take_loss() if by_batch is None and loops is not None else by_batch
        # jax holds the metrics' state elsewhere while it trains.
        totals = self._totals(watches, fits.call.model) if fits.backend != "jax" else None
        if totals is not None:
            before, self._before = self._before, totals
            return (totals[0] - before[0]) / (totals[1] - before[1]) if totals[1] > before[1] else None
        logs = fits.steps.logs
        figures = [logs[name] for name in ("loss", *logs) if name in logs and "loss" in name]
        return float(figures[0]) if figures and isinstance(figures[0], SupportsFloat) else None

    def _totals(self, watches: Watches, model: Model) -> tuple[float, float] | None:
        """Sum and count of the losses in this epoch; None where no metric holds them."""
        if watches.keras is None:
            return None
        read = watches.keras.ops.convert_to_numpy  # a strategy's variable is no number by itself
        means = [m for m in model.metrics if m.name == "loss" and hasattr(m, "total") and hasattr(m, "count")]
        totals = [(float(read(mean.total)), float(read(mean.count))) for mean in reversed(means)]
        # A model with its own train_step leaves the one that Keras made unused.
        return next(((total, count) for total, count in totals if count), None)
