"""The wait for data where the device runs behind the loop: what it isn't idle for is no wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from support.torch_trials import begin

from tuner.child.devices.cpu import CpuDevice

__all__ = ["begin"]


class Behind(CpuDevice):
    """A device that was given work until ``busy_until``, and passes its marks when it gets to them."""

    busy_until = 0.0

    def torch_mark(self, torch: ModuleType) -> object:
        self.busy_until = max(self.busy_until, time.perf_counter())
        return self.busy_until

    def torch_seconds(self, before: Any, after: Any) -> float:
        return float(after - before)


def _waited(begin: Callable[..., Any], work_s: float) -> float:
    """The share of the time told as wait, of a loader that takes 5 ms a batch."""

    def collate(rows: list[Any]) -> Any:
        time.sleep(0.005)
        return torch.utils.data.default_collate(rows)

    trial = begin()
    device = trial.session.device = Behind("cpu")
    data = torch.utils.data.TensorDataset(torch.ones(400, 5), torch.ones(400, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=collate)
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        device.busy_until = max(device.busy_until, time.perf_counter()) + work_s
        optimizer.step()
    trial.end()
    blocks = trial.log.of("block")
    return float(sum(block["wait_s"] for block in blocks) / sum(block["seconds"] for block in blocks))


@pytest.mark.timed
def test_a_fetch_that_the_device_does_not_notice_is_no_wait(begin: Callable[..., Any]) -> None:
    assert _waited(begin, work_s=0.05) < 0.05
    assert _waited(begin, work_s=0.0) > 0.7
