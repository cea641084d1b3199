"""Modules that had nothing to train when they were called first: built by that call, or frozen during it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch import nn

__all__ = ["begin"]

X, Y = torch.randn(16, 8), torch.randn(16, 1)


class BuiltByItsCall(nn.Module):  # type: ignore[misc]  # PyTorch is seen as Any
    """Has its weights once it was called, as guides of Pyro's and models that take their sizes from a batch."""

    def forward(self, x: Any, y: Any) -> Any:
        if not hasattr(self, "weight"):
            self.weight = nn.Parameter(torch.zeros(y.shape[1], x.shape[1]))
        output = nn.functional.linear(x, self.weight)
        self.dtype = output.dtype
        return nn.functional.mse_loss(output.float(), y)


def _steps(optimizer: Any, loss: Callable[[], Any], steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


@pytest.mark.parametrize("config", [{}, {"precision": "bf16"}], ids=str)
def test_a_model_that_its_first_call_builds_is_reached(begin: Callable[..., Any], config: dict[str, Any]) -> None:
    """It was taken for one without parameters for good, and the loss was said to come out of no module's call."""
    trial, model = begin(config), BuiltByItsCall()
    model(X, Y)
    _steps(torch.optim.SGD(model.parameters(), lr=0.01), lambda: model(X, Y))
    facts = trial.end()
    assert not facts["left_out"].keys() & {"precision", "compile"}
    assert model.dtype == (torch.bfloat16 if config else torch.float32)


def test_a_model_that_was_frozen_at_first_is_reached(begin: Callable[..., Any]) -> None:
    """As a discriminator, through which a generator is trained before it is itself."""
    trial = begin({"precision": "bf16"})
    generator, discriminator = nn.Linear(8, 8), nn.Linear(8, 1)
    seen: list[Any] = []
    discriminator.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (generator, discriminator)]
    for _ in range(3):
        discriminator.requires_grad_(False)
        _steps(optimizers[0], lambda: discriminator(generator(X)).square().mean(), steps=1)
        discriminator.requires_grad_(True)
        _steps(optimizers[1], lambda: discriminator(generator(X).detach()).square().mean(), steps=1)
    trial.end()
    assert seen[-1] == torch.bfloat16


@pytest.mark.parametrize("named", [False, True])
def test_a_model_that_is_thawed_late_is_reached(begin: Callable[..., Any], named: bool) -> None:
    """As in fine-tuning by stages: a body whose head was trained alone for more than eight steps kept its float32."""
    trial = begin({"precision": "bf16"})
    layer, head = nn.Linear(8, 8), nn.Linear(8, 1)
    body = Named(layer) if named else layer
    seen: list[Any] = []
    layer.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)

    def loss() -> Any:
        given = body(X)
        return head(given["features"] if named else given).square().mean()

    body.requires_grad_(False)
    _steps(optimizer, loss, steps=20)
    layer.bias.requires_grad_(True)
    _steps(optimizer, loss)
    trial.end()
    assert (seen[0], seen[-1]) == (torch.float32, torch.bfloat16)


class Named(nn.Module):  # type: ignore[misc]  # PyTorch is seen as Any
    """Gives what it computes by name."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return {"features": self.layer(x)}


def test_a_frozen_model_is_looked_through_a_few_times_only(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look goes through all its parameters: beside a small model, a large frozen one would cost more than it."""
    trial, frozen, model = begin(), nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 1)
    looks: list[str] = []

    def parameters() -> Any:
        looks.append("a look")
        return iter(frozen._parameters.values())

    monkeypatch.setattr(frozen, "parameters", parameters)
    _steps(torch.optim.SGD(model.parameters(), lr=0.01), lambda: model(frozen(X)).square().mean(), steps=50)
    trial.end()
    assert len(looks) < 20


@pytest.mark.parametrize("config", [{}, {"channels_last": True}, {"precision": "bf16"}], ids=str)
@pytest.mark.parametrize("norm", [nn.Identity, nn.LazyBatchNorm2d, lambda: nn.LazyBatchNorm2d(affine=False)])
def test_parameters_that_take_their_sizes_from_a_batch_are_none_yet(
    begin: Callable[..., Any], config: dict[str, Any], norm: Callable[[], Any]
) -> None:
    """PyTorch raises an error where anything is asked of them: the script ended with that in its first call."""
    trial, images = begin(config), torch.randn(4, 3, 8, 8)
    model = nn.Sequential(nn.LazyConv2d(4, 3), norm(), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.LazyLinear(1))
    model(images)
    _steps(torch.optim.SGD(model.parameters(), lr=0.01), lambda: model(images).square().mean(), steps=6)
    left_out = trial.end()["left_out"]
    assert not left_out.keys() & {"precision", "compile", "channels_last", "cudnn_benchmark"}
    for knob in config:
        assert trial.evidence(knob)[0] == "verified", trial.evidence(knob)


@pytest.mark.parametrize("config", [{}, {"channels_last": True}, {"precision": "bf16"}], ids=str)
def test_a_lazy_layer_that_is_never_called_takes_no_knob_away(begin: Callable[..., Any], config: Any) -> None:
    """It keeps no sizes for good: the model was one with nothing to train."""

    class WithHead(nn.Module):  # type: ignore[misc]  # PyTorch is not looked at
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 1))
            self.head = nn.LazyConv2d(4, 3)

        def forward(self, x: Any) -> Any:
            return self.body(x)

    trial, images, model = begin(config), torch.randn(4, 3, 8, 8), WithHead()
    optimizer = torch.optim.SGD(model.body.parameters(), lr=0.01)
    _steps(optimizer, lambda: model(images).square().mean(), steps=6)
    assert not trial.end()["left_out"].keys() & {"precision", "compile", "channels_last"}
    for knob in config:
        assert trial.evidence(knob)[0] == "verified", trial.evidence(knob)
