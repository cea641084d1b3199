"""What can be switched between two steps where ranks train together by DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.ddp_models import two_ranks
from support.torch_trials import begin
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tuner.child.session import Session

__all__ = ["begin", "two_ranks"]

pytestmark = pytest.mark.usefixtures("torch_settings_kept")
CONFIGS: list[dict[str, Any]] = [{"threads": 1}, {"precision": "bf16"}, {"optimizer": "fused"}]


def _trained(begin: Callable[..., Any]) -> Any:
    """The switcher of a script that has taken two steps, and what it holds."""
    trial = begin()
    model = DistributedDataParallel(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(8, 1, 6, 6)).sum().backward()
        optimizer.step()
    return trial.adapter.switcher(), model, optimizer


def test_what_is_fixed_when_the_wrapper_is_made_is_not_switched(begin: Callable[..., Any]) -> None:
    switcher, *kept = _trained(begin)
    assert switcher.obstacle() == "" and all(switcher.refusal(config) == "" for config in CONFIGS)
    assert "ddp_bucket_view can't be turned while it trains" in switcher.refusal({"ddp_bucket_view": True})
    assert "keeps the layout" in switcher.refusal({"channels_last": True})
    assert "nothing is compiled by turns" in switcher.refusal({"compile": "default"})
    assert kept


def test_in_one_process_what_trains_in_parallel_has_no_rotation(
    begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    switcher, *kept = _trained(begin)
    monkeypatch.setattr(Session, "ranks", 1)
    assert switcher.obstacle() == "it trains in parallel" and kept
