"""The guard of a trial, run as its runner runs it: what of the trial is left when the guard has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tuner.runner import guard


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
