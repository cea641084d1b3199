"""How a compiled loss depends on the batch, by what is told of it before a step is taken."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from .model import defines
from .types import Model

RATIO = "ratio"
"""Of what is summed over the whole batch, rows and all: Dice's, say."""
_COMPARING = frozenset({"circle"})
"""Keras' own that hold each row against the others of its batch."""


def reduction_of(model: Model, *, own_functions: bool = True) -> str:
    """How the compiled loss depends on the batch: "mean", "sum", ``RATIO`` or "unknown".

    Keras takes the mean of what a loss of the script's own gives, a function, a class or the model's ``compute_loss``;
    where that isn't a figure per sample, it's another loss for parts of a batch. ``own_functions``: whether such a one
    passes for a mean.
    """
    reductions = {_reduction_of_one(loss, own_functions) for loss in losses_of(model)}
    if defines(type(model), "compute_loss") and not own_functions:
        reductions.add("unknown")
    return reductions.pop() if len(reductions) == 1 else "unknown"


def has_own_loss(model: Model) -> bool:
    """Whether what it is compiled with is a loss of the script's own."""
    return not all(_computes_as_keras(_found(loss)) for loss in losses_of(model))


def losses_of(model: Model) -> list[object]:
    """What it is compiled with, but for outputs that have none."""
    losses = model.loss
    flat = list(losses.values()) if isinstance(losses, dict) else losses
    flat = flat if isinstance(flat, (list, tuple)) else [flat]
    return [loss for loss in flat if loss is not None]


def _reduction_of_one(loss: object, own_functions: bool) -> str:
    loss = _found(loss)
    reduction = getattr(loss, "reduction", None)
    if reduction == "sum":
        return "sum"
    if reduction not in ("sum_over_batch_size", "mean") and not (callable(loss) and reduction is None):
        return "unknown"
    # Keras wraps a plain function into a loss that takes the mean over the batch.
    if not _computes_as_keras(loss):
        return "mean" if own_functions else "unknown"
    return RATIO if _sums_rows(loss, getattr(loss, "fn", loss)) else "mean"


def _found(loss: object) -> object:
    """What Keras takes for a name, which may be one of the script's own."""
    if not isinstance(loss, str):
        return loss
    try:
        return sys.modules["keras"].losses.get(loss)
    except ValueError:
        return loss


def _owner(loss: object) -> object:
    """The class that says what the loss of a batch is; a function itself."""
    return next((cls for cls in type(loss).__mro__ if "call" in vars(cls)), loss)


def _computes_as_keras(loss: object) -> bool:
    """Whether what computes it is Keras' own."""
    return _is_keras(getattr(loss, "fn", loss)) and _is_keras(_owner(loss))


def _is_keras(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith("keras.src.")


def _sums_rows(loss: object, function: Any) -> bool:
    """Whether one of Keras' own sums over the rows before it divides: by the axis that it was told, or its default."""
    if getattr(function, "__name__", "") in _COMPARING:
        return True
    told = getattr(loss, "_fn_kwargs", {})
    parameters = inspect.signature(function).parameters if callable(function) else {}
    if "axis" not in {**told, **parameters}:
        return False
    axis = told["axis"] if "axis" in told else parameters["axis"].default
    return axis is None or 0 in (axis if isinstance(axis, (list, tuple)) else (axis,))


def why_no_parts(reduction: str) -> str:
    """Why a loss that is no mean over the batch, as ``reduction_of`` has told, isn't computed in parts."""
    if reduction == "unknown":
        return "how the loss is taken over the batch isn't known"
    return f"the loss is no mean over the batch ({reduction})"
