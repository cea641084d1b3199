"""Configs with loaders of their own take turns, and something ends: a worker, the trial, its study. Nothing is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.child.records import Hello, LoaderStarted, SwitchedTo, Window, WindowEnd
from tuner.devices.cpu import cpu_device
from tuner.model import Config, Outcome, OutcomeKind, Script
from tuner.runner.guard import descendants, stat_fields
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.records import read_records

ONE, TWO = Config(num_workers=1), Config(num_workers=2)
THREADS = Config(threads=1)
SCRIPT = """
import os
import sys
import time
import torch
from torch import nn
class Rows:
    def __len__(self):
        return 160
    def __getitem__(self, number):
        time.sleep(0.002)
        return torch.full((4,), float(number))
loader = torch.utils.data.DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=WORKERS)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
while True:
    for rows in loader:
        if os.path.exists(END):
            LEAVE
        optimizer.zero_grad()
        model(rows).mean().backward()
        optimizer.step()
"""
Meddle = Callable[[int, list[int]], object]
"""Is given the trial's process, and those below it."""


def run(
    folder: Path, meddle: Meddle, *, after: int, workers: int = 0, leave: str = "pass"
) -> tuple[Outcome, set[int]]:
    """The outcome of a rotation in which something happens after so many turns, and the processes that it had then.

    ``leave``: what the script does once there is a file named ``end``.
    """
    script, records, seen = folder / "train.py", folder / "trial/records.jsonl", set[int]()
    text = SCRIPT.replace("WORKERS", str(workers)).replace("LEAVE", leave)
    script.write_text(text.replace("END", repr(str(folder / "end"))))

    def wait_and_meddle() -> None:
        while not seen:
            time.sleep(0.02)
            entries = read_records(records) if records.exists() else []
            if sum(isinstance(entry.record, SwitchedTo) for entry in entries) >= after:
                child = next(entry.record.pid for entry in entries if isinstance(entry.record, Hello))
                below = descendants(child)
                seen.update((child, *below))
                meddle(child, below)

    watcher = threading.Thread(target=wait_and_meddle, daemon=True)
    watcher.start()
    request = TrialRequest(
        folder / "trial", Script(str(script), ()), cpu_device(), Config(),
        window=Window(warmup_steps=4, warmup_s=0.3, block_s=0.2, max_s=1000.0), rotation=(ONE, TWO, THREADS),
        limits=Limits(trial_timeout_s=60.0),
    )  # fmt: skip
    outcome = ProcessRunner().run(request, threading.Event())
    watcher.join(10)
    return outcome, seen


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if (fields := stat_fields(pid)) is not None and fields[0] not in "ZX"}


def workers_of(below: list[int]) -> list[int]:
    """Those that are stopped: they are of configs whose turn it isn't."""
    return [pid for pid in below if (fields := stat_fields(pid)) is not None and fields[0] == "T"]


@pytest.mark.slow  # 8 s beside three others
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_trial_that_is_killed_leaves_no_worker(tmp_path: Path, workers: int) -> None:
    held: list[int] = []

    def kill(child: int, below: list[int]) -> None:
        held.extend(workers_of(below))
        os.kill(child, signal.SIGKILL)

    outcome, seen = run(tmp_path, kill, after=5, workers=workers)
    assert not outcome.complete and len(held) >= 2, "several workers held still"
    assert not alive(seen)


def test_a_worker_that_dies_drops_its_config_and_no_other(tmp_path: Path) -> None:
    """One that holds still at that moment: it is found dead in its config's next turn."""
    killed: list[int] = []

    def kill(child: int, below: list[int]) -> None:
        killed.extend(workers_of(below)[:1])
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    outcome, seen = run(tmp_path, kill, after=5)
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    told = {each.config: each for each in outcome.rotation}
    assert len(killed) == 1 and (told[ONE].gain is None) != (told[TWO].gain is None)
    (lost,) = (each for each in (told[ONE], told[TWO]) if each.gain is None)
    assert "workers live" in lost.fault or "its loader failed" in lost.fault
    assert told[THREADS].gain is not None and not alive(seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "leave", ["sys.exit()", "raise ValueError('of its own')"]
)
def test_a_script_that_ends_amid_its_turns_ends_as_ever(tmp_path: Path, leave: str) -> None:
    """Workers that hold still don't hear that they are to end, and Python waits for them."""
    outcome, seen = run(tmp_path, lambda child, below: (tmp_path / "end").touch(), after=5, workers=1, leave=leave)
    assert not alive(seen)
    records = [entry.record for entry in read_records(tmp_path / "trial/records.jsonl")]
    assert sum(isinstance(record, LoaderStarted) for record in records) == 2
    assert not next(record.complete for record in records if isinstance(record, WindowEnd))
    assert outcome.kind not in (OutcomeKind.TIMED_OUT, OutcomeKind.CRASHED), outcome.detail
    assert ("of its own" in outcome.detail) == ("raise" in leave)
