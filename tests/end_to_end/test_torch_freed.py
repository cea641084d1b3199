"""What a script makes and drops is freed under every knob as under plain Python: models, loaders, optimizers."""

from __future__ import annotations

import gc
import multiprocessing
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch import nn
from torch.utils.data import DataLoader, Dataset

__all__ = ["begin"]

KNOBS: dict[str, dict[str, Any]] = {
    "none": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "channels last": {"channels_last": True},
    "compile": {"compile": "default"},
    "parts": {"batch_size": 4, "grad_accumulation": 4},
    "parts, compiled": {"batch_size": 4, "grad_accumulation": 4, "compile": "default"},
    "workers that stay": {"num_workers": 1, "persistent_workers": True},
    "optimizer": {"optimizer": "foreach", "lr_scale": 2.0},
}


class Rows(Dataset):  # type: ignore[misc]  # PyTorch isn't typed here
    """Sixty-four of them."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), torch.ones(1)


class Model(nn.Module):  # type: ignore[misc]  # PyTorch isn't typed here
    """Holds a method of its own, as some do: a value that holds it holds the model."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        self.compute = self.layers.forward

    def forward(self, x: Any) -> Any:
        return self.compute(x)


def _fold(**loading: Any) -> list[weakref.ref[Any]]:
    """One training of a cross-validation; what it made."""
    data, model = Rows(), Model()
    loader = DataLoader(data, 16, shuffle=True, **loading)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    iterators = []
    for _ in range(2):
        batches = iter(loader)
        iterators.append(weakref.ref(batches))
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return [*(weakref.ref(each) for each in (data, loader, model, optimizer)), *iterators]


FEW = {("none", "trial"), ("bf16", "trial"), ("parts, compiled", "trial")}
"""A way through the code each: the others are of the same watches."""


@pytest.mark.slow  # 7 s beside three others
@pytest.mark.parametrize(
    ("knobs", "mode"),
    [
        pytest.param(knobs, mode, marks=[] if (knobs, mode) in FEW else pytest.mark.slow)
        for knobs in KNOBS for mode in ("trial", "apply")
    ],
)  # fmt: skip
def test_what_is_dropped_is_freed(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, knobs: str, mode: str
) -> None:
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, mode: compile(function, backend="eager"))
    trial = begin(KNOBS[knobs], mode=mode)
    made = [each for _ in range(3) for each in _fold()]
    gc.collect()
    assert [type(left).__name__ for each in made if (left := each()) is not None] == []
    trial.end() if mode == "trial" else None


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize("mode", ["trial", pytest.param("apply", marks=pytest.mark.slow)])
def test_workers_that_stay_go_with_their_loader(begin: Callable[..., Any], mode: str) -> None:
    begin({"precision": "bf16"}, mode=mode)
    made = [each for _ in range(2) for each in _fold(num_workers=1, persistent_workers=True)]
    gc.collect()
    assert [type(left).__name__ for each in made if (left := each()) is not None] == []
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("knobs", ["bf16", "workers that stay"])
def test_what_is_known_of_a_script_is_bounded(begin: Callable[..., Any], knobs: str) -> None:
    """Which copies its model for each task, and makes a loader for each rollout, each of another length."""
    trial = begin(KNOBS[knobs], mode="apply", training_loaders=["elsewhere"])
    for number in range(300):
        model = Model()
        model(torch.ones(2, 4)).mean().backward()
        for _ in iter(DataLoader(range(1, number + 2), 16)):
            break
    watches = trial.adapter.watches
    assert watches.modules.parts.sites[0] < 300
    assert len([*watches.loaders.sources]) < 200
