"""The first gradient of a screen is that of the script's backwards, whatever the script makes of it before its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch.nn.utils import clip_grad
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["begin"]

Begin = Callable[..., Any]


def _by_hand(parameters: list[Any]) -> None:
    for parameter in parameters:
        parameter.grad.clamp_(-0.01, 0.01)


def _anew(parameters: list[Any]) -> None:
    for parameter in parameters:
        parameter.grad = parameter.grad.sign()


def _first(begin: Begin, clip: Callable[[list[Any]], object], scaler: Any = None, factor: float = 1.0) -> Any:
    """What a screen tells of its first gradient."""
    known: list[str] = []
    for seed in (None, 1):
        trial = begin({}, seed=seed, training_loaders=known)
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for x, y in DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), 16):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y) * factor
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip(list(model.parameters()))
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        known = trial.end()["training_loaders"]
    [record] = trial.log.of("gradient")
    return record


@pytest.mark.parametrize(
    ("clip", "changed"),
    [
        (lambda parameters: None, False),
        (lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.1), False),
        (lambda parameters: clip_grad.clip_grad_norm_(parameters, 0.1), False),
        (lambda parameters: clip_grad.clip_grad_value_(parameters, 0.01), False),
        (_by_hand, True),
        (_anew, True),
    ],
    ids=["as it is", "clipped", "by the submodule's name", "values", "by hand", "another one"],
)
@pytest.mark.parametrize("scales", [False, True], ids=["plain", "gradient scaler"])
def test_the_norm_is_that_of_before(begin: Begin, clip: Callable[..., Any], changed: bool, scales: bool) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scales else None
    plain = _first(begin, lambda parameters: None)
    once = _first(begin, clip, scaler)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scales else None
    fourfold = _first(begin, clip, scaler, factor=4.0)
    assert once["norm"] == pytest.approx(plain["norm"], rel=1e-5)
    assert fourfold["norm"] == pytest.approx(4 * plain["norm"], rel=1e-5)
    assert (once["changed"], fourfold["changed"]) == (changed, changed)


def test_fp16_of_ours_is_no_change_of_the_scripts(begin: Begin) -> None:
    known: list[str] = []
    records = []
    for config, seed in (({}, None), ({}, 1), ({"precision": "fp16"}, 1)):
        trial = begin(config, seed=seed, training_loaders=known)
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for number, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), 16)):
            torch.nn.functional.mse_loss(model(x), y).div(1e3).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        known = trial.end()["training_loaders"]
        records += trial.log.of("gradient")
    plain, scaled = records
    assert scaled["norm"] == pytest.approx(plain["norm"], rel=0.01)
    assert (plain["changed"], scaled["changed"]) == (False, False)


def _nested(rows: list[Any]) -> Any:
    return torch.nested.nested_tensor(rows)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("made", [_nested, lambda rows: torch.stack(rows).to(torch.float8_e4m3fn)])
def test_a_batch_that_has_no_sum_trains_in_a_screen(begin: Begin, made: Any) -> None:
    known: list[str] = []
    for seed in (None, 1):
        trial = begin({}, seed=seed, training_loaders=known)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for batch in DataLoader(list(torch.randn(64, 8)), 16, collate_fn=made):
            optimizer.zero_grad()
            whole = torch.nested.to_padded_tensor(batch, 0.0) if batch.is_nested else batch.float()
            model(whole).square().mean().backward()
            optimizer.step()
        known = trial.end()["training_loaders"]
        assert trial.samples == 64
    [record] = trial.log.of("gradient")
    assert record["norm"] > 0
