"""Scripts that compile their optimizer, or a whole step with its backward: the compiler meets none of our code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["begin"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def _trained(whole: bool) -> tuple[Any, dict[str, int]]:
    """The weights after some steps, and the frames and the graphs that were compiled."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def update() -> None:
        optimizer.step()

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    compiled = torch.compile(step if whole else update, backend="eager")
    for x, y in DataLoader(TensorDataset(torch.randn(96, 8), torch.randn(96, 1)), batch_size=8):
        if whole:
            compiled(x, y)
        else:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            compiled()
    return model.weight.detach(), {**counters["frames"], **counters["stats"]}


@pytest.mark.parametrize(
    ("seed", "whole"),
    [(1, True), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, False), (None, True), (None, False)))],
)
def test_what_a_script_compiles_is_compiled_as_under_plain_python(
    begin: Callable[..., Any], whole: bool, seed: int | None
) -> None:
    expected, plain = _trained(whole)
    trial = begin(seed=seed)
    weight, watched = _trained(whole)
    assert seed is not None or torch.equal(weight, expected)  # a screen shifts seeds
    assert watched == plain
    assert trial.steps == 12
