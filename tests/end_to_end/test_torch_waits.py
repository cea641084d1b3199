"""The wait for data where the device runs behind the loop: what it isn't idle for is no wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
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


def _waited(begin: Callable[..., Any], work_s: float, loaders: int = 1) -> float:
    """The share of the time told as wait, of loaders that take 5 ms a batch each."""

    def collate(rows: list[Any]) -> Any:
        time.sleep(0.005)
        return torch.utils.data.default_collate(rows)

    trial = begin()
    device = trial.session.device = Behind("cpu")
    data = torch.utils.data.TensorDataset(torch.ones(400, 5), torch.ones(400, 1))
    each = [torch.utils.data.DataLoader(data, batch_size=4, collate_fn=collate) for _ in range(loaders)]
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x, y), *_ in zip(*each, strict=True):
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


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.timed
def test_nor_is_that_of_another_loader_that_feeds_the_step(begin: Callable[..., Any]) -> None:
    assert _waited(begin, work_s=0.05, loaders=2) < 0.1
    assert _waited(begin, work_s=0.0, loaders=2) > 0.7


AROUND = """
    import time, torch
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 400
        def __getitem__(self, index):
            time.sleep(0.001)
            return torch.randn(8)
    class Around(torch.utils.data.IterableDataset):
        def __iter__(self):
            for batch in torch.utils.data.DataLoader(Slow(), batch_size=8):
                yield batch
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in torch.utils.data.DataLoader(Around(), batch_size=None):
        time.sleep(0.03)
        optimizer.zero_grad()
        model(x).var().backward()
        optimizer.step()
"""


@pytest.mark.timed
def test_a_loader_within_a_loader_is_waited_for_once(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    blocks = run_child(write_script(AROUND), window={"block_s": 0.1}).of("block")
    seconds, waits = (sum(told[name] for told in blocks) for name in ("seconds", "wait_s"))
    assert 0.15 < waits / seconds < 0.35, "9 ms of 39"
