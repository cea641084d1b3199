"""What PyTorch's optimizers offer, and which implementation of the update one of them uses."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import CodeType
from typing import Any

from .types import Optimizer


@dataclass(frozen=True)
class Stepped:
    """An optimizer that took a step, as it was then: it may be gone by the time that anyone asks."""

    name: str
    offered: frozenset[str]
    implementation: str


def describe(optimizer: Optimizer) -> Stepped:
    """The optimizer as it stands."""
    offered = frozenset(implementations(optimizer))
    return Stepped(type(optimizer).__name__, offered, _implementation(optimizer))


def implementations(optimizer: Optimizer) -> list[str]:
    """Which of "foreach" and "fused" the optimizer's class offers for its parameters."""
    accepted = inspect.signature(type(optimizer).__init__).parameters
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not parameters or "foreach" not in accepted or _updates_otherwise(type(optimizer)):
        return []
    offered = ["foreach"]
    supported = {"cpu", "cuda", "xpu", "mps"}
    if "fused" in accepted and all(p.is_floating_point() and p.device.type in supported for p in parameters):
        offered.append("fused")
    return offered


def _updates_otherwise(kind: type) -> bool:
    """Whether a class has a step of its own beneath the one that takes the argument, and calls none of those above it.

    A fused update also divides by a gradient scaler's scale, which the scaler then leaves to it.
    """
    classes = list(kind.__mro__)
    takes = next(place for place, each in enumerate(classes) if "__init__" in vars(each))
    # PyTorch wraps the step of a class, and puts it there where the class has only inherited it.
    codes = [_code_of(vars(each)["step"]) if "step" in vars(each) else None for each in classes]
    own = [code for code in codes[:takes] if code is not None and code not in codes[takes:]]
    return any({"super", "step"}.isdisjoint(code.co_names) for code in own)


def _code_of(step: Any) -> CodeType | None:
    return getattr(inspect.unwrap(step), "__code__", None)


def _implementation(optimizer: Optimizer) -> str:
    """Which implementation the optimizer's groups ask for; "default" leaves it to PyTorch."""
    group = optimizer.param_groups[0]
    if group.get("fused"):
        return "fused"
    return "foreach" if group.get("foreach") else "default"
