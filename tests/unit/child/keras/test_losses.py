"""Losses as a training step of Keras returns them."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import torch

from tuner.child.keras.losses import LossReader


def test_a_loss_that_has_its_gradient_is_read_without_a_warning() -> None:
    """As a ``train_step`` on PyTorch may return it; with warnings as errors the script failed in each trial."""
    steps = SimpleNamespace(logs={"loss": torch.ones(2, requires_grad=True).sum(), "accuracy": 0.5})
    fits = SimpleNamespace(call=SimpleNamespace(model=None), backend="torch", steps=steps)
    watches: Any = SimpleNamespace(fits=fits, loops=None, keras=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert LossReader().read(watches) == {"": 2.0}
