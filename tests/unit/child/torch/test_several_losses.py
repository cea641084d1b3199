"""Several losses of one call of a model, each with a backward of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin

__all__ = ["begin"]
Begin = Callable[..., Any]
BATCHES, EPOCHS = 8, 2


def _train(further: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor], *, steps_between: bool = False) -> None:
    """On two losses to a step: of the model's first output, and of what ``further`` makes."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for x in torch.utils.data.DataLoader(torch.randn(BATCHES * 4, 4), batch_size=4):
            optimizer.zero_grad()
            given = model(x)
            given[:, 0].square().mean().backward(retain_graph=True)
            if steps_between:
                optimizer.step()
            further(model, given if not steps_between else x).square().mean().backward()
            optimizer.step()


def _other_output(model: torch.nn.Module, given: torch.Tensor) -> torch.Tensor:
    return given[:, 1]


def _by_hand(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, model.weight)


def _of_others(model: torch.nn.Module, given: torch.Tensor) -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


@pytest.mark.parametrize(
    ("further", "between", "found"),
    [(_other_output, False, "verified"), (_of_others, False, "contradicted"), (_by_hand, True, "contradicted")],
)
def test_each_loss_of_a_call_follows_it(begin: Begin, further: Any, between: bool, found: str) -> None:
    """The second one was told as of no model's: the precision of all that it goes back through was contradicted."""
    trial = begin({"precision": "bf16"})
    _train(further, steps_between=between)
    assert trial.steps >= BATCHES * EPOCHS - 1
    trial.end()
    assert trial.evidence("precision")[0] == found
