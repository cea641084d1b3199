"""What a training script may ask of autotune, if it wants to. Outside of a trial both functions do nothing.

    batch_size = tuner.suggested("batch_size", 64)
    tuner.report(val_accuracy=0.93)

Imports nothing but the standard library's ``sys``: it stays in production scripts.
"""

from __future__ import annotations

import sys
from typing import TypeVar

__all__ = ["__version__", "report", "suggested"]

__version__ = "0.1.0"

_Value = TypeVar("_Value", bool, int, float, str)


def suggested(name: str, default: _Value) -> _Value:
    """The value that the running trial (or ``autotune run``) chose for knob ``name``, else ``default``."""
    child = sys.modules.get("_autotune_child")
    if child is None:
        return default
    value: _Value = child.suggested(name, default)
    return value


def report(*, step: int | None = None, samples: int | None = None, **metrics: float) -> None:
    """Tells the running trial a metric of the script's own, and how far the training is: ``samples`` since its start,
    and the ``step`` since then or, with ``samples``, since the epoch's. What is no number is passed over.
    """
    child = sys.modules.get("_autotune_child")
    if child is None:
        return
    progress = {"step": step, "samples": samples}
    child.report({**metrics, **{name: value for name, value in progress.items() if value is not None}})
