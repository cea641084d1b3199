"""Scripts for XLA devices in a real child, on PJRT's CPU client."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
Write = Callable[..., Path]

HEAD = """
    import sys, time, torch, torch.nn as nn, torch.nn.functional as F
    from torch.utils.data import DataLoader, Dataset, TensorDataset
    import torch_xla, torch_xla.core.xla_model as xm, torch_xla.distributed.parallel_loader as pl
    import torch_xla.debug.metrics as met, torch_xla.distributed.xla_multiprocessing as xmp, torch_xla.utils.utils as xu
    DATA = TensorDataset(torch.randn(800, 32), torch.randint(0, 4, (800,)))
    def make(width=64):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 4)).to(torch_xla.device())
        return net, torch.optim.SGD(net.parameters(), lr=0.01)
    seen = 0
    def count(batch):
        # What the script itself has trained on, and when.
        global seen
        seen += len(batch)
        print("SEEN", time.monotonic(), seen, flush=True)
"""


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the device kind has it for a trial."""
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("CPU_NUM_DEVICES", "1")


@pytest.fixture
def trained(run_child: Run, write_script: Write) -> Run:
    """Runs a loop as the script as written, or with a config."""

    def run(loop: str, config: dict[str, Any] | None = None, **more: Any) -> Any:
        text = textwrap.dedent(HEAD) + textwrap.dedent(loop)
        return run_child(write_script(text), config, device="xla", **more)

    return run


def seen_by(ran: Any) -> list[tuple[float, int]]:
    """When the script had trained on how many samples, by its own count."""
    return [(float(at), int(samples)) for at, samples in re.findall(r"^SEEN (\S+) (\d+)$", ran.output, re.MULTILINE)]
