"""A machine that others fill while a trial runs: the child is real, and what the machine has left is made up."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.devices.cpu import cpu_device
from tuner.model import Config, OutcomeKind, Script
from tuner.runner import machine_memory
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest

GIB = 2**30


@pytest.mark.parametrize(
    ("config", "whose"),
    [
        (Config(), "others"), (Config(num_workers=2), "its own"),
        pytest.param(Config(), "its own", marks=pytest.mark.slow),
        pytest.param(Config(num_workers=2), "others", marks=pytest.mark.slow),
    ],
    ids=["baseline-others", "config-its own", "baseline-its own", "config-others"],
)  # fmt: skip
def test_a_machine_that_others_filled_is_no_fault_of_the_config(
    tmp_path: Path, write_script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, whose: str, config: Config
) -> None:
    pid = tmp_path / "pid"
    script = write_script(f"""
        import os, time
        open({str(pid)!r}, "w").write(str(os.getpid()))
        time.sleep(600)
    """)

    began: list[str] = []  # the trial's own file is moved away at its end

    def memory() -> tuple[int, int]:
        if not began and pid.exists() and pid.read_text():
            began.append(pid.read_text())
        is_full = bool(began) and (whose == "others" or os.path.exists(f"/proc/{began[0]}"))
        return 64 * GIB, (1 if is_full else 60) * GIB

    monkeypatch.setattr(machine_memory, "host_memory", memory)
    request = TrialRequest(
        tmp_path / "trial", Script(str(script), ()), cpu_device(), config,
        limits=Limits(trial_timeout_s=60, max_host_bytes=57 * GIB),
    )  # fmt: skip
    outcome = ProcessRunner().run(request, threading.Event())
    if whose == "others":
        assert (outcome.kind, outcome.reason) == (OutcomeKind.INFRASTRUCTURE, "machine-full")
        assert "other processes hold 63.0 of its 64.0 GiB" in outcome.detail
    else:
        assert (outcome.kind, outcome.reason) == (OutcomeKind.INFEASIBLE, "host-oom")
        assert "other processes hold 4.0 of the machine's 64.0 GiB" in outcome.detail
