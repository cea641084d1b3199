"""Which implementations of the update optimizers of the script's own are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin

__all__ = ["begin"]
Begin = Callable[..., Any]


class Signs(torch.optim.Adam):  # type: ignore[misc]  # PyTorch may lack types where this is checked
    """Is made as Adam is, and updates otherwise."""

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.sub_(group["lr"] * weight.grad)


class Inherits(Signs):
    """Has it from another one."""


class Counts(torch.optim.Adam):  # type: ignore[misc]  # as above
    """Does something of its own around Adam's step."""

    def step(self, closure: Any = None) -> Any:
        self.taken = getattr(self, "taken", 0) + 1
        return super().step(closure)


class Named(torch.optim.Adam):  # type: ignore[misc]  # as above
    """Has nothing of its own."""


def _train(kind: type[Any]) -> torch.Tensor:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer, scaler = kind(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu")
    for _ in range(4):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    return model.weight.detach().clone()


@pytest.mark.parametrize("kind", [Signs, Inherits, Counts, Named])
@pytest.mark.parametrize("mode", ["trial", "apply"])
def test_an_update_of_the_scripts_own_is_given_no_scaled_gradients(begin: Begin, kind: type[Any], mode: str) -> None:
    """A scaler leaves its scale to a fused step, and to one that only says so: weights went to 1e12."""
    as_written = _train(kind)
    begin({"optimizer": "fused"}, mode=mode)
    assert torch.allclose(_train(kind), as_written, atol=1e-5)


@pytest.mark.parametrize(("kind", "offers"), [(Signs, False), (Inherits, False), (Counts, True), (Named, True)])
def test_what_passes_a_fused_step_by_is_offered_none(begin: Begin, kind: type[Any], offers: bool) -> None:
    trial = begin()
    _train(kind)
    _train(kind)  # its class is wrapped by now
    assert ("fused" in trial.end()["optimizer_choices"]) == offers
