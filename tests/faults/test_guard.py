"""The guard of a trial, run as its runner runs it: what of the trial is left when the guard has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tuner.runner import guard
from tuner.runner.tree import Tree


def _state(pid: int) -> str:
    fields = guard.stat_fields(pid)
    return "" if fields is None else fields[0]


def _await_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 20
    while _state(pid) != state:
        assert time.monotonic() < deadline, f"process {pid} is in state {_state(pid)!r}"
        time.sleep(0.01)


def test_a_guard_reaps_what_ended_in_the_moment_it_is_told_to_end(tmp_path: Path) -> None:
    """Until it is reaped, a process may hold memory: the runner reads the machine's when the guard has ended."""
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    command = [sys.executable, "-I", "-S", guard.__file__, "", str(log), "--", "/bin/sleep", "600"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[log]) as process:
        os.close(log)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        child = int(process.stdout.readline().split()[1])
        os.kill(process.pid, signal.SIGSTOP)
        _await_state(process.pid, "T")
        os.kill(child, signal.SIGKILL)
        _await_state(child, "Z")
        process.stdin.close()  # before the guard, still held, has seen that its child ended
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.read().split() == [b"exit", str(signal.SIGKILL.value).encode()]
        assert process.wait(20) == 0
    assert _state(child) == ""


BY_PYTHON = """
import sys, time
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=4096)
with open(sys.argv[1], "w") as file:
    file.write(memory.name.lstrip("/"))
time.sleep(600)
"""
BY_PYTORCH = """
import os, sys, time
import torch.multiprocessing
torch.multiprocessing.set_sharing_strategy("file_system")
shared = torch.zeros(1000).share_memory_()
(name,) = [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")]
with open(sys.argv[1], "w") as file:
    file.write(name)
time.sleep(600)
"""
PYTORCH = pytest.param(BY_PYTORCH, marks=pytest.mark.slow, id="pytorch")  # which is imported


@pytest.mark.parametrize("script", [pytest.param(BY_PYTHON, id="python"), PYTORCH])
@pytest.mark.parametrize("by", ["guard", "guard while held", "tree"])
def test_shared_memory_of_a_trial_that_is_ended_is_given_back(tmp_path: Path, script: str, by: str) -> None:
    """Its name lives on in /dev/shm, and the memory with it: after a night of such trials the machine is full."""
    log, name = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT), tmp_path / "name"
    command = [sys.executable, "-I", "-S", guard.__file__, "", str(log), "--", sys.executable, "-c", script, str(name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[log]) as process:
        os.close(log)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while not (name.exists() and name.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        memory = Path("/dev/shm", name.read_text())
        assert memory.exists()
        below = guard.descendants(process.pid)
        assert any(map(guard.clears_up, below))
        for pid in below if by == "guard while held" else ():
            os.kill(pid, signal.SIGSTOP)
            _await_state(pid, "T")
        if by == "tree":
            Tree(process.pid).kill()
        process.stdin.close()
        assert process.wait(20) == 0
    left = memory.exists()
    memory.unlink(missing_ok=True)
    assert not left
    assert not any(map(_state, below))
