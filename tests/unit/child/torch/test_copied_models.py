"""Scripts that make a copy of their model for each step, as in meta-learning: what is looked at of each model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch import nn

from tuner.child.torch import checkpointing, modules, parts
from tuner.child.torch.compiling import MOST_MODELS

__all__ = ["begin"]


def _model() -> Any:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))


def _train(model: Any, copies: int) -> None:
    """Two steps on each copy."""
    for _ in range(copies):
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(local.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            local(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()


def test_copies_are_looked_at_for_a_while_only(begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had its first calls looked at as a model's are: a step took four times as long as under plain Python."""
    looks: list[str] = []

    def noted(module: Any, name: str) -> None:
        original = getattr(module, name)

        def look(*args: Any, **kwargs: Any) -> Any:
            looks.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, look)

    for module, name in ((parts, "state_of"), (checkpointing, "state_of"), (modules, "LayerLook")):
        noted(module, name)
    trial, model = begin(), _model()
    _train(model, 2 * MOST_MODELS)
    assert set(looks) == {"state_of", "LayerLook"}
    first = len(looks)
    _train(model, MOST_MODELS)
    assert looks[first:] == []
    facts = trial.end()
    assert facts["as_written"]["precision"] == "fp32"
    assert (facts["as_written"]["grad_accumulation"], facts["left_out"].get("grad_accumulation")) == (1, None)


def test_a_generator_of_numpys_that_goes_on_is_seen() -> None:
    numpy = pytest.importorskip("numpy")
    before = checkpointing._drawn()
    assert checkpointing._drawn() == before
    numpy.random.rand()
    assert checkpointing._drawn() != before
