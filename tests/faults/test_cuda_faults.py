"""Faults on a real CUDA card: what takes too much memory, and a study that is killed while its trial computes there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command import Place

from tuner.child.records import Window
from tuner.devices.nvml import nvml_handle, nvml_session
from tuner.devices.present import kind_of, resolve_device
from tuner.model import Config, OutcomeKind, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest

pytestmark = pytest.mark.cuda
ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
WIDE = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    device = torch.device("cuda")
    kept = torch.zeros(BALLAST, dtype=torch.uint8, device=device)
    data = TensorDataset(torch.randn(2**16, 64), torch.randn(2**16, 1))
    loader = DataLoader(data, batch_size=64, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    print("on the card", flush=True)
    for epoch in range(10**6):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
"""


def test_a_batch_that_takes_too_much_is_infeasible_and_the_next_trial_runs(
    tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    script, runner = write_script(WIDE.replace("BALLAST", "1")), ProcessRunner()

    def run(name: str, **config: Any) -> Any:
        request = TrialRequest(
            tmp_path / name, Script(str(script), ()), resolve_device("cuda"), Config(config),
            window=Window(warmup_steps=3, warmup_s=0.2, block_s=0.05, max_s=0.6),
            limits=Limits(trial_timeout_s=60.0, max_device_bytes=GIB // 2),
        )  # fmt: skip
        return runner.run(request, threading.Event())

    outcome = run("large", batch_size=2**15)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFEASIBLE, "device-oom"), outcome.detail
    after = run("small", batch_size=128)
    assert after.complete and after.measurement.knobs[0].evidence == "verified", after.detail
    assert after.measurement.peak_device_bytes < 3 * GIB


def _listed() -> dict[int, int | None]:
    """Bytes of each process that computes on the card, by the driver's own list: in a container, of the host's pids."""
    with nvml_session() as nvml:
        handle = nvml_handle(nvml, resolve_device("cuda"))
        assert nvml is not None
        return {each.pid: each.usedGpuMemory for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}


def _until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_killed_study_leaves_nothing_on_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    place = Place(tmp_path, (sys.executable, "-m", "tuner"))
    place.write(WIDE.replace("BALLAST", "2**31"), "train.py")
    study = place.start("study", "train.py", "--device", "cuda", "--study", "study", "--budget", "5m")
    try:
        logs = (tmp_path / "study" / "trials").glob
        _until(lambda: any("on the card" in log.read_text() for log in logs("*/log.txt")), 60, "no trial begins")
        ours = {int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_in(path, tmp_path)}
        on_card = ours & set(_listed())
    finally:
        os.kill(study.pid, signal.SIGKILL)
        study.communicate()
    _until(lambda: not place.processes(), 20, f"left: {place.processes()}")
    _until(lambda: not on_card & set(_listed()), 10, "the driver still lists it")


def _is_in(process: Path, folder: Path) -> bool:
    try:
        return str(folder).encode() in (process / "environ").read_bytes()
    except OSError:
        return False


SAMPLES = """
    import sys, time
    from tuner.devices.present import kind_of, resolve_device
    card = resolve_device("cuda")
    most = 0
    print(kind_of(card).used_bytes(card), flush=True)
    while not sys.stdin.closed:
        most = max(most, kind_of(card).used_bytes(card) or 0)
        print(most, flush=True)
        time.sleep(0.02)
"""


@pytest.mark.timed  # alone on the card
def test_the_peak_that_is_told_is_what_the_driver_saw(
    run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    """The driver's figure is read by another process, all the while: what it shows above what was in use before."""
    card = resolve_device("cuda")
    before = kind_of(card).used_bytes(card) or 0
    command = [sys.executable, "-c", textwrap.dedent(SAMPLES)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sampler:
        ran = run_child(
            write_script(WIDE.replace("BALLAST", "3 * 2**30")), device="cuda:0", used_device_bytes=before, fresh=True,
            window={"max_s": 2.0, "min_s": 2.0},
        )  # fmt: skip
        sampler.kill()
        assert sampler.stdout is not None
        seen = max(int(line) for line in sampler.stdout.read().split()) - before
    memory = ran.of("memory")[-1]
    assert memory["reserved"] + memory["overhead"] == pytest.approx(seen, rel=0.05)
