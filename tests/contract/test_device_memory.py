"""Every kind of device: the memory that a trial is held to grows by what is known to have been put there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tuner.child import devices

ROOT = Path(__file__).parents[2]
MARKED = {"cuda": pytest.mark.cuda, "tpu": pytest.mark.tpu, "xla": pytest.mark.xla}
KINDS = [pytest.param(kind, marks=[MARKED[kind]] if kind in MARKED else []) for kind in devices.KINDS]
# Of a device without memory of its own it is the process tree's. A first tensor brings the runtime's own.
GROWS = """
    import os, torch
    from tuner.child import devices
    from tuner.runner.tree import own_bytes
    device = devices.named({kind!r})
    if device.torch_type == "xla":
        import torch_xla
    def held():
        device.torch_synchronize(torch)
        memory = device.torch_memory(torch, 0)
        return own_bytes([os.getpid()]) if memory is None else memory.allocated
    def put(mebibytes):
        start = torch.zeros(1).to(device.torch_type)
        values = torch.ones(mebibytes << 18, device=start.device).add_(start)  # peaks hold what is added up aside
        if device.torch_type == "xla":
            torch_xla.sync()
        device.torch_synchronize(torch)
        return values
    kept = [put(64)]
    before = held()
    kept.append(put(512))
    grown = held() - before
    print(grown, sum(each.shape[0] for each in kept))
    assert abs(grown / (512 << 20) - 1) < 0.05, grown / (512 << 20)
"""


@pytest.mark.slow  # 6 s beside three others
@pytest.mark.parametrize("kind", KINDS)
def test_it_grows_by_what_was_put_there(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "xla":
        monkeypatch.setenv("PJRT_DEVICE", "CPU")
    command = [sys.executable, "-c", textwrap.dedent(GROWS.format(kind=kind))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
