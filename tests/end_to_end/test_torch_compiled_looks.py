"""What the compiled code of a script's own model shows of its layers, without a hook on any of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support.torch_trials import begin

__all__ = ["begin"]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
Begin = Callable[..., Any]


class Model(torch.nn.Module):  # type: ignore[misc]  # PyTorch isn't typed here
    """Two convolutions and a product, under autocast where the model says so itself."""

    def __init__(self, *, autocast: bool = False) -> None:
        super().__init__()
        self.autocast = autocast
        self.one, self.two = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16) if self.autocast else nullcontext():
            return self.head(self.two(self.one(x)).mean((2, 3)))


def _trained(trial: Any, model: Any, compile: Callable[[Any], Any]) -> None:
    name = "torch._dynamo.output_graph"  # a child patches it when it is imported
    trial.adapter.libraries[name].install(importlib.import_module(name))
    called = compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        called(torch.rand(2, 3, 8, 8)).float().mean().backward()
        optimizer.step()


def _all(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def _part(model: Any) -> Any:
    model.two = torch.compile(model.two, backend="eager")
    return model


def _square(model: Any) -> Any:
    """A function of the script's that has none of the layers in it."""
    squared = torch.compile(lambda x: x * x, backend="eager")
    return lambda x: squared(model(x))


KINDS = pytest.mark.parametrize("compile", [_all, _part, _square])


@KINDS
def test_the_format_of_its_products_is_seen(begin: Begin, compile: Callable[[Any], Any]) -> None:
    trial = begin({"precision": "bf16"})
    _trained(trial, Model(), compile)
    trial.end()
    assert trial.evidence("precision")[0] == "verified"


@KINDS
def test_the_layout_of_its_batches_is_seen(begin: Begin, compile: Callable[[Any], Any]) -> None:
    trial = begin({"channels_last": True})
    _trained(trial, Model(), compile)
    trial.end()
    assert trial.evidence("channels_last")[0] == "verified"


@KINDS
@pytest.mark.parametrize("autocast", [False, True])
def test_autocast_of_its_own_is_seen(begin: Begin, compile: Callable[[Any], Any], autocast: bool) -> None:
    trial = begin()
    _trained(trial, Model(autocast=autocast), compile)
    trial.end()
    facts = trial.session.facts
    assert ("precision" in facts.left_out) is autocast
    assert facts.as_written["channels_last"] is False


def test_nothing_is_seen_of_a_script_that_compiles_what_the_watches_never_meet(begin: Begin) -> None:
    """So no precision is offered for it."""
    trial = begin()
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = torch.compile(lambda x: model(x).mean(), backend="eager")
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(torch.rand(2, 3, 8, 8)).backward()
        optimizer.step()
    trial.end()
    assert "precision" in trial.session.facts.left_out


def test_blocks_are_not_checkpointed_where_the_script_compiles(begin: Begin) -> None:
    trial = begin({"checkpointing": True})
    block = torch.nn.Sequential
    model = torch.nn.ModuleList([block(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(3)])

    class Blocks(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = model

        def forward(self, x: Any) -> Any:
            for each in self.blocks:
                x = each(x)
            return x

    whole = Blocks()
    called = torch.compile(whole, backend="eager")
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        called(torch.rand(4, 8)).mean().backward()
        optimizer.step()
    trial.end()
    assert trial.evidence("checkpointing")[0] == "not applicable"
