"""Functions that are patched take what PyTorch's own take, by position and by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from support.torch_trials import begin

__all__ = ["begin"]


def test_a_parameter_group_may_be_added_by_keyword(begin: Callable[..., Any]) -> None:
    begin()
    optimizer = torch.optim.SGD(torch.nn.Linear(5, 1).parameters(), lr=0.01)
    optimizer.add_param_group(param_group={"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 0.5})
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "lr": 0.25})
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.5, 0.25]


SGD: Any = torch.optim.SGD


class Warmed(SGD):  # type: ignore[misc]  # PyTorch isn't typed here
    """Takes something else before its closure."""

    def step(self, anew: bool = False, *, closure: Any = None) -> Any:
        """Begins anew, or steps."""
        assert anew is False
        return super().step(closure)


def test_a_closure_is_given_as_the_script_gives_it(begin: Callable[..., Any]) -> None:
    trial = begin()
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = Warmed([weight], lr=0.25)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure=closure)
    optimizer.step(False, closure=closure)
    assert weight.item() == 0.125
    assert trial.steps == 3
