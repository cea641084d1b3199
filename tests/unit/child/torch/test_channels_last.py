"""Channels-last is another place of the same numbers: what else the script has in that place stays the same, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch import nn

from tuner.child.torch.channels_last import HELD, TRANSFORMED

__all__ = ["begin"]
Begin = Callable[..., Any]
CONFIG = {"channels_last": True}


class Remembering(nn.Module):  # type: ignore[misc]  # PyTorch may lack types where this is checked
    """Changes a state that the script gives it, in place."""

    def __init__(self, *, with_gradient: bool) -> None:
        super().__init__()
        self.layer, self.with_gradient = nn.Conv2d(3, 3, 3, padding=1), with_gradient

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        new = self.layer(x + state)
        with torch.set_grad_enabled(self.with_gradient):
            state.mul_(0.5).add_(new)
        return new


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 1))


def _steps(model: nn.Module, optimizer: Any, after: Callable[[], object] = lambda: None) -> torch.Tensor:
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8, 8)).square().mean().backward()
        optimizer.step()
        after()
    return next(model.parameters()).detach().contiguous()


@pytest.mark.parametrize("with_gradient", [False, True])
def test_what_a_model_changes_of_what_it_is_given_is_changed(begin: Begin, with_gradient: bool) -> None:
    """It was changed in a copy: a memory that the script keeps stayed at zeros, and the knob was told as verified."""

    def train() -> torch.Tensor:
        torch.manual_seed(0)
        model = Remembering(with_gradient=with_gradient)
        optimizer, kept = torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(2, 3, 8, 8)
        for _ in range(3):
            optimizer.zero_grad()
            kept = kept.detach()
            (model(torch.randn(2, 3, 8, 8), kept).square().mean() + kept.square().mean()).backward()
            optimizer.step()
        return torch.cat([kept.detach().flatten(), model.layer.weight.detach().flatten()])

    as_written = train()
    trial = begin(CONFIG)
    assert torch.allclose(train(), as_written, atol=1e-5)
    trial.end()
    assert trial.evidence("channels_last")[0] == "verified"


def _flat(model: nn.Module) -> Any:
    """All weights as parts of one, which an optimizer has."""
    weights, begins = list(model.parameters()), 0
    flat = nn.Parameter(torch.cat([weight.data.flatten() for weight in weights]))
    flat.grad = torch.zeros_like(flat)
    for weight in weights:
        part = slice(begins, begins + weight.numel())
        weight.data, weight.grad = flat.data[part].view_as(weight), flat.grad[part].view_as(weight)
        begins += weight.numel()
    optimizer = torch.optim.SGD([flat], lr=0.1)
    optimizer.zero_grad = flat.grad.zero_
    return optimizer, lambda: None


def _masked(model: Any) -> Any:
    """What is pruned is set to zero after each step, by a name that the script has for the weight's memory."""
    weight = model[0].weight.data
    mask = (torch.rand_like(weight) > 0.5).float()
    return torch.optim.SGD(model.parameters(), lr=0.1), lambda: weight.mul_(mask)


def _reloaded(model: Any) -> Any:
    held = model.state_dict()
    return torch.optim.SGD(model.parameters(), lr=0.1), lambda: model.load_state_dict(held)


@pytest.mark.parametrize("made", [_flat, _masked, _reloaded])
@pytest.mark.parametrize("mode", ["trial", "apply"])
def test_weights_that_the_script_has_by_another_name_stay_where_they_are(begin: Begin, made: Any, mode: str) -> None:
    """They were copied elsewhere: the flat buffer trained on, and the model that it is the memory of never moved."""

    def train() -> torch.Tensor:
        model = _model()
        return _steps(model, *made(model))

    as_written = train()
    trial = begin(CONFIG, mode=mode)
    assert torch.allclose(train(), as_written, atol=1e-5)
    if mode == "trial":
        trial.end()
        assert trial.evidence("channels_last") == ("not applicable", HELD)
        trial = begin()
        train()
        assert trial.end()["left_out"]["channels_last"] == HELD


def test_weights_of_its_own_are_no_obstacle(begin: Begin) -> None:
    """Neither after a checkpoint was loaded into them, nor where a copy of the model is an average of it."""
    trial = begin()
    model, other = _model(), _model()
    model.load_state_dict(other.state_dict())
    torch.optim.swa_utils.AveragedModel(model)
    _steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "channels_last" not in trial.end()["left_out"]


def _resumed(model: nn.Module, optimizer: Any) -> None:
    """As a checkpoint has it that was written in the usual layout."""
    torch.manual_seed(1)
    for weight in model.parameters():
        optimizer.state[weight] = {
            "step": torch.tensor(5.0), "exp_avg": torch.randn(weight.shape), "exp_avg_sq": torch.rand(weight.shape)
        }  # fmt: skip


def _given_by_hand(model: nn.Module, optimizer: Any) -> None:
    """Gradients that the script puts there, of one long one."""

    def flatten(weight: torch.Tensor) -> None:
        assert weight.grad is not None
        weight.grad = weight.grad.contiguous().flatten().view(weight.shape)

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(flatten)


@pytest.mark.parametrize("begins", [_resumed, _given_by_hand])
@pytest.mark.parametrize("mode", ["trial", "apply"])
def test_a_fused_update_takes_each_number_for_its_own_weight(begin: Begin, begins: Any, mode: str) -> None:
    """On a processor it goes through memory, and mixed the numbers up where a gradient or a state lay otherwise."""

    def train() -> torch.Tensor:
        model = _model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        begins(model, optimizer)
        return _steps(model, optimizer)

    as_written = train()
    trial = begin(CONFIG, mode=mode)
    assert torch.allclose(train(), as_written, atol=1e-4)
    if mode == "trial":
        trial.end()
        assert trial.evidence("channels_last")[0] == "verified"


def test_the_script_has_its_own_gradient_after_the_step(begin: Begin) -> None:
    begin(CONFIG)
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    model(torch.randn(2, 3, 8, 8)).square().mean().backward()
    own = model[0].weight.grad = torch.ones(4, 3, 3, 3)
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert model[0].weight.grad is own
    assert torch.allclose(model[0].weight, before - 0.1)


def test_a_weight_that_is_made_anew_for_each_call_is_no_other_holder(begin: Begin) -> None:
    """``spectral_norm`` leaves the first weight in the place of what it computes: the knob was refused."""

    def train() -> torch.Tensor:
        model = _model()
        nn.utils.spectral_norm(model[0])
        return _steps(model, torch.optim.SGD(model.parameters(), lr=0.1))

    as_written = train()
    baseline = begin({})
    train()
    assert "channels_last" not in baseline.end()["left_out"]
    trial = begin(CONFIG)
    assert torch.allclose(train(), as_written, atol=1e-5)
    trial.end()
    assert trial.evidence("channels_last") == ("verified", "")


def _each_sample(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The gradient of each sample by itself, in the mean."""
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(held: Any, one: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(model, held, (one.unsqueeze(0),)).square().mean()
        return result

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    for name, weight in model.named_parameters():
        weight.grad = gradients[name].mean(0)
    return x


def _each_batch(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Several batches at once."""
    weights = dict(model.named_parameters())
    call = torch.func.vmap(lambda one: torch.func.functional_call(model, weights, (one,)).square().mean())
    call(x.unsqueeze(1).expand(-1, 2, -1, -1, -1).contiguous()).mean().backward()
    return x


@pytest.mark.parametrize("compute", [_each_sample, _each_batch])
@pytest.mark.parametrize("called_before", [False, True])
def test_a_model_within_a_transform_is_left_as_it_is(begin: Begin, compute: Any, called_before: bool) -> None:
    """PyTorch raised an error where a tensor was laid within ``vmap``: the config was told as none that can work."""

    def train() -> torch.Tensor:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if called_before:
            _steps(model, optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            compute(model, torch.randn(4, 3, 8, 8))
            optimizer.step()
        return model[0].weight.detach().contiguous()

    as_written = train()
    for config in ({}, CONFIG):
        trial = begin(config)
        assert torch.allclose(train(), as_written, atol=1e-5)
        left_out = trial.end()["left_out"]
    assert trial.evidence("channels_last") == ("not applicable", TRANSFORMED)
    assert called_before or left_out["channels_last"] == TRANSFORMED
