"""The script's own callbacks of ``Model.fit``: which of them act with every batch, and which set the learning rate."""

from __future__ import annotations

from collections.abc import Iterable

BATCH_METHODS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_ONLY_SHOW = frozenset({"keras", "tqdm", "wandb", "mlflow", "comet_ml", "neptune", "clearml", "tensorboard", "swanlab"})
"""Packages whose callbacks show or log what they are told with a batch, and change nothing in the training."""


def listed(callbacks: object) -> list[object]:
    """What a script passes as ``callbacks``: nothing, one, a list of them or Keras' own ``CallbackList``."""
    inner = getattr(callbacks, "callbacks", callbacks) or ()
    return list(inner) if isinstance(inner, (list, tuple)) else [inner]


def acts_by_batch(callbacks: Iterable[object]) -> str:
    """The name of the first callback that does something of its own with every batch of training; "" for none."""
    for callback in callbacks:
        if any(_is_own(callback, method) for method in BATCH_METHODS):
            return type(callback).__name__
    return ""


def saves_by_batch(callbacks: Iterable[object]) -> str:
    """The name of the first callback that saves after so many batches; "" for none."""
    for callback in callbacks:
        if type(getattr(callback, "save_freq", None)) is int:
            return type(callback).__name__
    return ""


def sets_rate(callbacks: Iterable[object]) -> bool:
    """Whether one of them sets the learning rate to a figure of its own."""
    return any("LearningRateScheduler" in type(callback).__name__ for callback in callbacks)


def lowers_rate(callbacks: Iterable[object]) -> bool:
    """Whether one of them multiplies the learning rate that it finds."""
    return any("ReduceLROnPlateau" in type(callback).__name__ for callback in callbacks)


def _is_own(callback: object, method: str) -> bool:
    """Whether the callback's method is the script's own: a class's, or a function that it was given."""
    if method in getattr(callback, "__dict__", {}):
        return True
    owner = next((cls for cls in type(callback).__mro__ if method in vars(cls)), None)
    return owner is not None and owner.__module__.partition(".")[0] not in _ONLY_SHOW
