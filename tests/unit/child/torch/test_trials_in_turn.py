"""Trials of the tests' own process that follow each other: none has to do with what comes behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch import nn

__all__ = ["begin"]

OPTIMIZERS: list[type[Any]] = [torch.optim.SGD, torch.optim.AdamW, torch.optim.LBFGS]


def train(optimizer: type[Any], steps: int) -> None:
    model = nn.Linear(4, 1)
    made = optimizer(model.parameters(), lr=0.01)

    def closure() -> Any:
        made.zero_grad()
        loss = model(torch.ones(8, 4)).sum()
        loss.backward()
        return loss

    for _ in range(steps):
        made.step(closure)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_the_newest_trials(begin: Callable[..., Any], optimizer: type[Any]) -> None:
    """AdamW's, which are Adam's, stayed with a trial that other tests had stopped, and ended theirs."""
    first, plain = begin(), optimizer.step
    train(optimizer, 3)
    counted = first.steps
    first.session.stopped = True
    second = begin()
    train(optimizer, 3)
    assert second.steps == first.steps == counted > 0
    begin()
    assert optimizer.step is plain
