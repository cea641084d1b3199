"""Gradients that a script takes before it makes its optimizer (to begin adapters, to prune): none of them is a step."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import Trial, begin
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["begin"]

Begin = Callable[..., Trial]
pytestmark = pytest.mark.usefixtures("torch_settings_kept")


def loader(rows: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(rows * 40, 4)), batch_size=rows)


def take(model: torch.nn.Module, loader: DataLoader[Any], update: Callable[[], object]) -> None:
    """A backward for each batch, and then the update."""
    for (x,) in loader:
        model(x).square().mean().backward()
        update()
        model.zero_grad()


def test_gradients_that_nothing_follows_are_no_steps_and_their_loader_does_not_train(begin: Begin) -> None:
    trial = begin()
    model = torch.nn.Linear(4, 1)
    take(model, loader(2), lambda: None)
    assert trial.steps == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    take(model, loader(8), optimizer.step)
    facts = trial.end()
    assert trial.steps == 40 and facts["samples"] == 40 * 8 and facts["as_written"]["batch_size"] == 8
    assert "batch_size" not in facts["left_out"] and not facts["remarks"]


def test_nor_are_those_that_are_taken_when_an_optimizer_has_gone(begin: Begin) -> None:
    """As between two tasks, of how much each weight matters (elastic weight consolidation)."""
    trial, model = begin(), torch.nn.Linear(4, 1)

    def train() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        take(model, loader(8), optimizer.step)

    train()
    gc.collect()
    take(model, loader(2), lambda: None)
    assert trial.steps == 40
    train()
    facts = trial.end()
    assert trial.steps == 80 and trial.set_apart() == 1 and not facts["remarks"]
    assert facts["samples"] - 80 * 8 in (0, 2), "its first batch might have had an optimizer of its own"


@pytest.mark.slow  # 37 s beside three others
def test_a_step_counts_once_where_each_has_an_optimizer_of_its_own(begin: Begin) -> None:
    """What its optimizer moved, which was gone by then, passed for an update by hand as well: 80 steps of 40."""
    trial, model = begin(), torch.nn.Linear(4, 1)

    def update() -> None:
        torch.optim.SGD(model.parameters(), lr=0.01).step()
        gc.collect()

    take(model, loader(8), update)
    facts = trial.end()
    assert trial.steps == 40 and facts["samples"] == 40 * 8 and facts["as_written"]["batch_size"] == 8


def test_updates_by_hand_may_follow_those_of_an_optimizer(begin: Begin) -> None:
    trial, model = begin(), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    take(model, loader(8), optimizer.step)
    del optimizer
    gc.collect()

    def update() -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.sub_(0.01 * parameter.grad)

    take(model, loader(8), update)
    assert trial.steps == 79, "the first of these might have had an optimizer of its own"
    assert trial.end()["samples"] == 80 * 8


@pytest.mark.parametrize("kind", ["in place", "by .data", "by nothing", "made anew"])
def test_each_backward_is_a_step_where_the_script_updates_by_hand(begin: Begin, kind: str) -> None:
    trial = begin()
    weight = torch.ones(4, requires_grad=True)
    for (x,) in loader(8):
        (x * weight).square().mean().backward()
        assert weight.grad is not None
        with torch.no_grad():
            if kind == "made anew":
                weight = (weight - 0.1 * weight.grad).requires_grad_()
            elif kind == "by .data":
                weight.data.sub_(0.1 * weight.grad)
                weight.grad = None
            else:
                weight -= (0.1 if kind == "in place" else 0.0) * weight.grad
                weight.grad = None
    assert trial.steps == 40 and trial.end()["samples"] == 40 * 8


def test_so_it_is_where_a_step_leaves_the_sum_of_the_weights_as_it_was(begin: Begin) -> None:
    """As of two classes, whose weights begin with zeros and move against each other."""
    trial, weights = begin(), torch.zeros(4, 2, requires_grad=True)
    for (x,) in loader(8):
        torch.nn.functional.cross_entropy(x @ weights, (x[:, 0] > 0).long()).backward()
        assert weights.grad is not None
        weights.data.sub_(weights.grad)
        weights.grad = None
    assert trial.steps == 40


def test_a_model_that_gradients_were_taken_of_goes_when_the_script_lets_it_go(begin: Begin) -> None:
    """Its weights and gradients lay in memory until another model had been called. Nor does anything refer to them
    weakly: PyTorch exchanges no such tensors, as ``Module.to`` does of some kinds.
    """
    begin()
    model = torch.nn.Linear(4, 1)
    take(model, loader(2), lambda: None)
    torch.utils.swap_tensors(model.weight, torch.nn.Parameter(torch.zeros(1, 4)))
    weight = weakref.ref(model.weight)
    del model
    gc.collect()
    assert weight() is None


def test_weights_that_have_no_sum_are_taken_to_change_and_complex_ones_raise_no_warning(begin: Begin) -> None:
    trial = begin()
    weight = torch.ones(4, requires_grad=True)
    odd = torch.nn.Parameter(torch.zeros(2, 4, dtype=torch.float8_e4m3fn))
    turned = torch.ones(4, dtype=torch.complex64, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kept in (turned.abs().sum(), turned.abs().sum()):
            (weight.sum() + kept).backward()
        assert trial.steps == 0
        for _ in range(2):
            (weight.sum() + odd.to(torch.float32).sum()).backward()
            odd.grad = None
    assert trial.steps == 2
