"""Every kind of device: waiting for it really waits, and waits for no more than it was given."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tuner.child import devices

ROOT = Path(__file__).parents[2]
MARKED = {"cuda": pytest.mark.cuda, "tpu": pytest.mark.tpu, "xla": pytest.mark.xla}
# Alone, but for the processor: PyTorch works on it at once, and what reading has to wait for is all that is looked at.
KINDS = [
    pytest.param(kind, marks=[MARKED[kind], pytest.mark.timed] if kind in MARKED else []) for kind in devices.KINDS
]
# A chain of products is given to the device; once it has been waited for, nothing is left to wait for in reading one.
# The least of three: what doesn't wait leaves something each time, and others who take the core do not.
WAITS = """
    import time, torch
    from tuner.child import devices
    KIND = {kind!r}
    device = devices.named(KIND)
    device.torch_synchronize(torch)  # not the first use of it
    if device.torch_type == "xla":
        import torch_xla
        give = torch_xla.sync
    else:
        give = lambda: None
    # A card is given a small product no faster than it computes it.
    size = {{"cuda": 4096, "cpu": 250}}.get(KIND, 600)
    start = torch.full((size, size), 1e-4).to(device.torch_type)
    def work():
        product = start
        for _ in range(40):
            product = product @ start
        total = product.sum()
        give()
        return total
    for _ in range(2):  # compiled by then
        work()
        device.torch_synchronize(torch)
    giving, reading = [], []
    for _ in range(3):
        began = time.perf_counter()
        total = work()
        given = time.perf_counter()
        device.torch_synchronize(torch)
        waited = time.perf_counter()
        float(total)
        read = time.perf_counter()
        giving.append((given - began) / (waited - began))
        reading.append((read - waited) / (waited - began))
    print(giving, reading)
    if device.asynchronous:
        assert min(giving) < 0.5, "nothing was left to wait for"
    assert min(reading) < 0.2, "it had not ended"
"""
NOTED_DOWN = """
    import torch, torch_xla, torch_xla.debug.metrics as metrics
    from tuner.child import devices
    product = torch.ones(64, 64).to("xla") @ torch.ones(64, 64).to("xla")
    devices.named("xla").torch_synchronize(torch)
    assert metrics.metric_data("ExecuteTime") is None, "a graph was given to the device"
    assert float(product[0, 0]) == 64
"""


def run(text: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(text)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_for_a_device_waits_until_it_is_done(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "xla":
        monkeypatch.setenv("PJRT_DEVICE", "CPU")
    run(WAITS.format(kind=kind))


@pytest.mark.xla
def test_waiting_gives_the_device_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script has noted down by then is its own next graph, whole."""
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    run(NOTED_DOWN)
