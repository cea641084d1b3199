"""Inductor's cache on disk, as real children meet it: empty first, full next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Config, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest

TRAIN = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1_000_000):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_second_trial_finds_what_the_first_one_compiled(
    write_script: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study lies beside the script, where what a trial leaves is put aside: its cache is not."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    write_script(TRAIN)
    told = []
    configs: list[Config] = [Config(compile="default"), Config(compile="default"), BASELINE]
    for number, config in enumerate(configs):
        request = TrialRequest(
            tmp_path / "study" / "trials" / str(number), Script("train.py", ()), cpu_device(), config,
            window=Window(max_s=1.0), limits=Limits(trial_timeout_s=120.0),
            compile_cache=tmp_path / "study" / "compile-cache",
        )  # fmt: skip
        outcome = ProcessRunner().run(request, threading.Event())
        assert outcome.measurement is not None, outcome
        told.append(outcome.measurement.compile_cache)
    assert told == ["cold", "warm", ""]
