"""What the newest step gave where Keras computes with JAX: the model's own variables hold none of it meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .types import Model

_METRICS = 3
"""Where a step's state has the variables of the metrics."""


class NewestState:
    """``platforms``: JAX's names of the kinds of devices that the logs lie on; none before the first step."""

    def __init__(self) -> None:
        self._logs: object = None
        self._metrics: Sequence[Any] = ()

    def stepped(self, logs: object, state: Sequence[Any]) -> None:
        """A call of the training function has given these. Its next one is given the state, and with it all of that."""
        self._logs = logs
        self._metrics = state[_METRICS] if len(state) > _METRICS else ()

    @property
    def platforms(self) -> frozenset[str]:
        logs = self._logs.values() if isinstance(self._logs, Mapping) else ()
        lying = [leaf.devices() for leaf in logs if hasattr(leaf, "is_deleted") and not leaf.is_deleted()]
        return frozenset(device.platform for devices in lying for device in devices)

    def metrics_of(self, model: Model) -> dict[int, Any]:
        """By the identity of each variable of the model's metrics what it holds; none where that isn't there."""
        variables = list(model.metrics_variables)
        known = len(variables) == len(self._metrics) and not any(map(_is_gone, self._metrics))
        return dict(zip(map(id, variables), self._metrics, strict=True)) if known else {}


def _is_gone(leaf: Any) -> bool:
    return bool(getattr(leaf, "is_deleted", lambda: False)())
