"""Exchanges the implementation of optimizers' updates between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from .optimizers import implementations

FLAGS = ("fused", "foreach")
SCALES = "_step_supports_amp_scaling"
"""Says of an optimizer that its step divides by a gradient scaler's scale, as fused ones do."""
_ABSENT = object()


class Implementations:
    """Of ``optimizers``, those that there are when it is asked; a fused update counts its steps on the device."""

    def __init__(self, torch: ModuleType, optimizers: Callable[[], Iterable[Any]]) -> None:
        self._torch = torch
        self._optimizers = optimizers
        self._kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._counts: dict[int, Any] = {}
        """A state by its identity → its count of steps as it was: its device and type."""

    def keep(self) -> None:
        """Remembers what the script asks for."""
        names = (*FLAGS, SCALES)
        self._kept = [
            (owner, {name: owner.get(name, _ABSENT) for name in names})
            for optimizer in self._optimizers()
            for owner in (*optimizer.param_groups, optimizer.defaults, vars(optimizer))
        ]
        self._counts = {id(state): state["step"] for of in self._optimizers() for _, state in self._counted(of)}

    def choose(self, chosen: str) -> None:
        """Has each optimizer that offers it update so."""
        for optimizer in self._optimizers():
            if chosen not in implementations(self._torch, optimizer):
                continue
            for owner in (*optimizer.param_groups, optimizer.defaults):
                owner.update(fused=chosen == "fused", foreach=chosen == "foreach")
            if chosen == "fused":
                vars(optimizer)[SCALES] = True
            self._count_as_asked(optimizer)

    def restore(self) -> None:
        """What the script asked for."""
        for owner, flags in self._kept:
            for name, value in flags.items():
                if value is _ABSENT:
                    owner.pop(name, None)
                else:
                    owner[name] = value
        for optimizer in self._optimizers():
            self._count_as_asked(optimizer)
            for _, state in self._counted(optimizer):
                before = self._counts.get(id(state))
                if before is not None:
                    state["step"] = state["step"].to(device=before.device, dtype=before.dtype)

    def _count_as_asked(self, optimizer: Any) -> None:
        """Counts steps where the update that is asked for does: a fused one on the device, others on the host.

        An update that finds them elsewhere fails, or waits for the device once for each weight.
        """
        if "fused" not in implementations(self._torch, optimizer):
            return
        fused = {id(each) for group in optimizer.param_groups if group.get("fused") for each in group["params"]}
        for weight, state in self._counted(optimizer):
            if id(weight) in fused:
                state["step"] = state["step"].to(device=weight.device, dtype=self._torch.float32)
            else:
                state["step"] = state["step"].cpu()

    def _counted(self, optimizer: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Weights whose steps are counted in a tensor, each with its state."""
        for weight, state in optimizer.state.items():
            if isinstance(state, dict) and isinstance(state.get("step"), self._torch.Tensor):
                yield weight, state
