"""Checkpointing spares memory in a real trial, and is seen to: what its blocks compute isn't kept for the backward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Config, Evidence, Measurement, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest

TRAIN = """
    import torch

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Linear(1, 1)
        def forward(self, x):
            for _ in range(4):
                x = torch.cos(torch.sin(x))
            return x * self.scale.weight

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(6))
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in torch.utils.data.DataLoader(torch.ones(1, 1, 2**18).expand(100_000, 1, 2**18), batch_size=8):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""
KEPT_BYTES = 6 * 8 * 8 * 2**18 * 4
"""What 48 sines and cosines keep of a batch: 384 MiB."""


@pytest.mark.slow
def test_a_trial_takes_less_memory_and_says_what_was_computed_again(
    write_script: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # What is freed goes back: glibc keeps pieces below 32 MiB, however few of them are in use.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    write_script(TRAIN)
    found: list[Measurement] = []
    configs: list[Config] = [BASELINE, Config(checkpointing=True)]
    for number, config in enumerate(configs):
        window = Window(warmup_s=0.5, min_s=0.5, max_s=1.0)
        folder = tmp_path / "study" / "trials" / str(number)
        outcome = ProcessRunner().run(
            TrialRequest(folder, Script("train.py", ()), cpu_device(), config, window=window), threading.Event()
        )
        assert outcome.measurement is not None, outcome
        found.append(outcome.measurement)
    plain, spared = found
    assert plain.peak_host_bytes - spared.peak_host_bytes > 0.4 * KEPT_BYTES
    [report] = spared.knobs
    assert (report.evidence, report.sites_seen, report.sites_changed) == (Evidence.VERIFIED, 6, 6)
    assert spared.rate < plain.rate, "it costs time"
