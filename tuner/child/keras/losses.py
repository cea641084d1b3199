"""The training losses under Keras since they were last read: Keras' own figures are means over the epoch so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat, TypeVar

from ..metrics import number_of
from .on_batch import OnBatchWatch
from .types import Model
from .watches import Watches

Figure = TypeVar("Figure")
_WHOLE = ("loss", "total_loss")
"""Names of a figure that holds all others: Keras' own, and what scripts call it."""


class LossReader:
    """Reads the metrics in which Keras, or the model's own training step, holds the losses of an epoch."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def epoch_begins(self) -> None:
        """The metrics begin anew."""
        self._before = {}

    def read(self, watches: Watches) -> dict[str, float]:
        """Name → the mean since the last time, else what the step has returned; "" is the whole loss.

        A training step of the model's own may hold several and no whole one, as a GAN's does.
        """
        fits, loops = watches.fits, watches.loops
        if fits is None or fits.call is None or not fits.steps.logs:
            if fits is not None and (averaged := self._averaged(watches, fits.on_batch)):
                return averaged
            loss = fits.on_batch.take_loss() if fits is not None else None
            others: dict[str, float] = {}
            if loss is None and loops is not None:
                loss, others = loops.take_loss(), loops.other_losses.take()
            return others if loss is None else {"": loss, **others}
        # JAX holds the metrics' state elsewhere while it trains.
        elsewhere = fits.steps.newest.metrics_of(fits.call.model) if fits.backend == "jax" else None
        totals = self._totals(watches, fits.call.model, elsewhere)
        if totals:
            before, self._before = self._before, totals
            return {
                name: (total - before.get(name, (0.0, 0.0))[0]) / (count - before.get(name, (0.0, 0.0))[1])
                for name, (total, count) in totals.items()
                if count > before.get(name, (0.0, 0.0))[1]
            }
        logs = fits.steps.logs
        figures = {name: value for name, value in logs.items() if "loss" in name and isinstance(value, SupportsFloat)}
        return {name: number_of(value) for name, value in _whole_or_all(figures).items()}

    def _averaged(self, watches: Watches, on_batch: OnBatchWatch) -> dict[str, float]:
        """Of ``train_on_batch`` where Keras gives the mean of all its calls so far; none elsewhere."""
        model = on_batch.newest() if on_batch.averages else None
        totals = self._totals(watches, model, None) if model is not None else {}
        before, self._before = self._before, totals
        figures = {}
        for name, (total, count) in totals.items():
            sum_before, count_before = before.get(name, (0.0, 0.0))
            if count <= count_before:  # the script has had its metrics begin anew
                sum_before = count_before = 0.0
            figures[name] = (total - sum_before) / (count - count_before)
        return figures

    def _totals(
        self, watches: Watches, model: Model, elsewhere: Mapping[int, object] | None
    ) -> dict[str, tuple[float, float]]:
        """Sum and count of the losses in this epoch, by name; none where no metric holds them.

        ``elsewhere``: what the metrics' variables hold, by identity, where they don't themselves.
        """
        if watches.keras is None or elsewhere == {}:
            return {}
        to_numpy = watches.keras.ops.convert_to_numpy  # a strategy's variable is no number by itself

        def read(variable: object) -> Any:
            return to_numpy(variable if elsewhere is None else elsewhere[id(variable)])

        means = [m for m in model.metrics if "loss" in m.name and hasattr(m, "total") and hasattr(m, "count")]
        if elsewhere is not None:
            means = [mean for mean in means if {id(mean.total), id(mean.count)} <= elsewhere.keys()]
        totals = [(mean.name, float(read(mean.total)), float(read(mean.count))) for mean in means]
        # A model with its own train_step leaves the one that Keras made unused.
        return _whole_or_all({name: (total, count) for name, total, count in totals if count})


def _whole_or_all(figures: dict[str, Figure]) -> dict[str, Figure]:
    """The whole loss alone, under the name "", where there is one."""
    return next(({"": figures[name]} for name in _WHOLE if name in figures), figures)
