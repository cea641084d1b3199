"""Scripts that train in several ranks by gloo on the CPU, and what a trial of one ends as."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import Config, Outcome, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest

QUICK = Window(
    warmup_steps=3, warmup_s=0.1, block_s=0.05, min_blocks=6, min_s=0.3, max_s=3.0, target_half_width=1e9
)
UNENDING = dataclasses.replace(QUICK, min_s=120.0, max_s=120.0)
"""Of a trial that something else ends."""

DDP = """
import os, sys, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.manual_seed(0)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
assert int(os.environ["LOCAL_RANK"]) == rank
BATCH, ROWS = 16, 64000
data = TensorDataset(torch.randn(ROWS, 8), torch.randn(ROWS, 1))
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
#SETUP
sampler = DistributedSampler(data, ranks, rank)
loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
step = 0
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for x, y in loader:
        #STEP
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
    #EPOCH
#END
dist.destroy_process_group()
"""


def ddp(*, setup: str = "", step: str = "", epoch: str = "", end: str = "", epochs: int = 1000) -> str:
    """The script with these lines at its places."""
    text = DDP.replace("range(EPOCHS)", f"range({epochs})")
    for name, lines, indent in (("SETUP", setup, 0), ("STEP", step, 8), ("EPOCH", epoch, 4), ("END", end, 0)):
        text = text.replace(f"#{name}", f"\n{' ' * indent}".join(lines.splitlines()) or "pass")
    return text


def request_of(folder: Path, source: str, config: dict[str, Any] | None = None, **given: Any) -> TrialRequest:
    """A trial of the script in two ranks."""
    script = folder / "train.py"
    script.write_text(source)
    request = TrialRequest(
        folder / "trial", Script(str(script), ()), cpu_device(), Config(config or {}), window=QUICK,
        limits=Limits(trial_timeout_s=60), ranks=2,
    )  # fmt: skip
    return dataclasses.replace(request, **given)


def run_ranks(folder: Path, source: str, config: dict[str, Any] | None = None, **given: Any) -> Outcome:
    """What the trial ends as."""
    runner = ProcessRunner()
    try:
        return runner.run(request_of(folder, source, config, **given), threading.Event())
    finally:
        runner.close()
