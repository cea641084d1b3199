"""fp16 where the script has no loss scaling of its own: the same numbers as by hand, on the CPU and on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin

from tuner.child import devices

__all__ = ["begin"]


Begin = Callable[..., Any]


def _model() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _scaled_by_hand(device: str, batches: list[tuple[Any, Any]]) -> tuple[Any, int]:
    skipped = 0
    model, optimizer = _model()
    model.to(device)
    scaler = torch.amp.GradScaler(device)
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            out = model(x)
        scaler.scale(torch.nn.functional.mse_loss(out.float(), y)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.4)
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        skipped += scaler.get_scale() < before
    return model.weight, skipped


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.mark.parametrize("device", DEVICES)
def test_fp16_scales_clips_and_skips_as_by_hand(begin: Begin, device: str) -> None:
    torch.manual_seed(1)
    batches = [(torch.randn(8, 5, device=device), torch.randn(8, 1, device=device)) for _ in range(6)]
    batches[2][1][0] = 1e6  # its gradient overflows: the step must be skipped
    by_hand, skipped = _scaled_by_hand(device, batches)
    trial = begin({"precision": "fp16"})
    trial.session.device = devices.named(device)
    model, optimizer = _model()
    model.to(device)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.4)  # a second one must not unscale again
        optimizer.step()
    assert torch.equal(model.weight, by_hand)
    trial.adapter.watches.steps.scalers.settle()
    assert trial.adapter.watches.steps.scalers.skipped == skipped >= 1


def test_two_optimizers_of_one_step_share_the_scale(begin: Begin) -> None:
    begin({"precision": "fp16"})
    (one, first), (two, second) = _model(), _model()
    x, y = torch.randn(8, 5), torch.randn(8, 1)
    y[0] = 1e6  # the scale is halved after this step, not between its two updates
    for target in (y, torch.zeros(8, 1)):
        for model in (one, two):
            torch.nn.functional.mse_loss(model(x), target).backward()
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()
    assert torch.equal(one.weight, two.weight)
