"""What PyTorch's optimizers offer, and which implementation of the update one of them uses."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import ModuleType

from .types import Optimizer


@dataclass(frozen=True)
class Stepped:
    """An optimizer that took a step, as it was then: it may be gone by the time that anyone asks."""

    name: str
    offered: frozenset[str]
    implementation: str


def describe(torch: ModuleType, optimizer: Optimizer) -> Stepped:
    """The optimizer as it stands."""
    offered = frozenset(implementations(torch, optimizer))
    return Stepped(type(optimizer).__name__, offered, _implementation(optimizer))


def implementations(torch: ModuleType, optimizer: Optimizer) -> list[str]:
    """Which of "foreach" and "fused" the optimizer's class offers for its parameters."""
    accepted = inspect.signature(type(optimizer).__init__).parameters
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not parameters or "foreach" not in accepted:
        return []
    offered = ["foreach"]
    supported = {"cpu", "cuda", "xpu", "mps"}
    if "fused" in accepted and all(p.is_floating_point() and p.device.type in supported for p in parameters):
        offered.append("fused")
    return offered


def _implementation(optimizer: Optimizer) -> str:
    """Which implementation the optimizer's groups ask for; "default" leaves it to PyTorch."""
    group = optimizer.param_groups[0]
    if group.get("fused"):
        return "fused"
    return "foreach" if group.get("foreach") else "default"
