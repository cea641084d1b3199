"""Inductor's cache on disk, as real children meet it: empty first, full next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.measurement import measurement_of

pytest.importorskip("torch", reason="PyTorch isn't installed")

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
def test_a_second_run_finds_what_the_first_one_compiled(
    write_script: Callable[..., Path],
    run_child: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compile-cache"))
    script = write_script(TRAIN)
    told = []
    for config in ({"compile": "default"}, {"compile": "default"}, {}):
        run = run_child(script, config, window={"max_s": 1.0})
        measurement = measurement_of(run.records, [])
        assert measurement is not None, run.output
        told.append(measurement.compile_cache)
    assert told == ["cold", "warm", ""]
