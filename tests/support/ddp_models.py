"""DistributedDataParallel in one process: its group has one rank, and its reducers say that they have two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tuner.child.session import Session

SEARCHING = {"find_unused_parameters": True}


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As far as anybody asks."""
    told = DistributedDataParallel._get_ddp_logging_data
    monkeypatch.setattr(
        DistributedDataParallel, "_get_ddp_logging_data", lambda module: {**told(module), "world_size": 2}
    )
    monkeypatch.setattr(Session, "ranks", 2)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def train(
    *models: Any, steps: int = 4, before: Callable[[int], None] = lambda step: None,
    dtype: torch.dtype = torch.float32,
) -> None:  # fmt: skip
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)
    for step in range(steps):
        before(step)
        optimizer.zero_grad()
        sum(model(torch.ones(8, 4, dtype=dtype)).sum() for model in models).backward()
        optimizer.step()


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
