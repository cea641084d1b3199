"""What fp16 leaves alone: gradients that loss scaling can't give as the script's own are never scaled ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin, seeded_model

__all__ = ["begin"]
Begin = Callable[..., Any]
NEAR = {"rtol": 0.02, "atol": 0.001}


def _penalized(model: Any, optimizer: Any) -> None:
    """By a penalty on its gradients, which are differentiated again."""
    optimizer.zero_grad()
    model(torch.ones(8, 5)).square().mean().backward(create_graph=True)
    penalty = sum(p.grad.square().sum() for p in model.parameters())
    again = torch.autograd.grad(penalty, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), again, strict=True):
        parameter.grad = parameter.grad.detach() + 0.01 * gradient


def _with_module_hook(model: Any, optimizer: Any) -> None:
    model.register_full_backward_hook(lambda layer, into, out: None)


def _with_inner_gradient(model: Any, optimizer: Any) -> None:
    """As an attack on an embedding takes it."""
    x = torch.ones(8, 5, requires_grad=True)
    x.retain_grad()  # of a leaf this is nothing
    inner = x * 1.0
    inner.retain_grad()
    model(inner).mean().backward()
    torch.testing.assert_close(inner.grad, (model.weight / 8).detach().expand(8, 5), **NEAR)


def _with_inner_input(model: Any, optimizer: Any) -> None:
    inner = torch.ones(8, 5, requires_grad=True) * 1.0
    model(inner).mean().backward(inputs=iter([inner, model.bias]))
    torch.testing.assert_close(inner.grad, (model.weight / 8).detach().expand(8, 5), **NEAR)


def _with_inner_input_by_position(model: Any, optimizer: Any) -> None:
    inner = torch.ones(8, 5, requires_grad=True) * 1.0
    loss = model(inner).mean()
    torch.autograd.backward([loss], None, None, False, None, iter([inner, model.bias]))
    torch.testing.assert_close(inner.grad, (model.weight / 8).detach().expand(8, 5), **NEAR)


def _from_an_edge(model: Any, optimizer: Any) -> None:
    edge = torch.autograd.graph.get_gradient_edge(model(torch.ones(8, 5)).mean())
    torch.autograd.backward(edge, torch.ones(()))


@pytest.mark.filterwarnings("ignore:Using backward", "ignore:Full backward hook")
@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (_penalized, "differentiates its gradients"), (_with_module_hook, "hooks on the backward"),
        (_with_inner_gradient, "in the middle of its model"), (_with_inner_input, "in the middle of its model"),
        (_with_inner_input_by_position, "in the middle of its model"), (_from_an_edge, "begins at an edge"),
    ],
)  # fmt: skip
def test_a_script_that_takes_gradients_otherwise_has_fp16_refused(
    begin: Begin, capfd: pytest.CaptureFixture[str], train: Any, reason: str
) -> None:
    def weights() -> Any:
        model, optimizer = seeded_model()
        for _ in range(3):
            train(model, optimizer)
            model(torch.ones(8, 5)).mean().backward()
            optimizer.step()
        return model.weight.detach()

    plain = weights()
    trial = begin({"precision": "fp16"}, mode="apply")
    torch.testing.assert_close(weights(), plain, rtol=0.01, atol=0.001)
    trial.session.applied.ended(0)
    said = capfd.readouterr().err
    assert "NOT in effect: precision" in said and reason in said


def test_hooks_are_given_gradients_of_their_own_kind(begin: Begin) -> None:
    """In double precision: fp16 is of the model's layers."""
    begin({"precision": "fp16"}, mode="apply")
    model, _ = seeded_model()
    given: list[Any] = []
    weight = torch.ones(5, dtype=torch.float64, requires_grad=True)
    weight.register_hook(lambda gradient: given.append(gradient.clone()))
    (model(torch.ones(8, 5)).mean().double() + weight.sum()).backward()
    torch.testing.assert_close(given, [torch.ones(5, dtype=torch.float64)])


@pytest.mark.parametrize("named", [False, True], ids=["in a list", "by names"])
def test_gradients_of_some_inputs_are_as_written(begin: Begin, named: bool) -> None:
    """By names since PyTorch 2.13 or so, which is what the tests run on."""
    trial = begin({"precision": "fp16"}, mode="apply")
    model, _ = seeded_model()
    inputs = {"weight": model.weight}
    loss = model(torch.ones(8, 5)).mean() * 0.1
    torch.autograd.backward(loss, inputs=inputs if named else list(inputs.values()))
    torch.testing.assert_close(model.weight.grad, torch.full((1, 5), 0.1), **NEAR)
    assert model.bias.grad is None and trial.session.knobs.wants("precision")
