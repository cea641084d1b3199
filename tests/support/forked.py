"""Trials that start fresh and trials that are forked, of one script, with what tells how each of them started."""

from __future__ import annotations

import json
import os
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tuner.child import wire
from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.knowledge import Knowledge
from tuner.model import Config, Outcome, Script
from tuner.runner import fork_servers
from tuner.runner.guard import descendants, stat_fields
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest

QUICK = Window(warmup_steps=3, warmup_s=0.05, block_s=0.025, min_blocks=6, min_s=0.15, max_s=2.0, target_half_width=1e9)
KNOWN = Knowledge(framework="torch")
"""As after a baseline that PyTorch trained."""
KNOWN_OF_KERAS = Knowledge(framework="keras")
"""As after one that Keras did."""
KNOWN_OF_JAX = Knowledge(framework="jax")
"""As after one that JAX did."""
QUICKLY_LOADED = {"torch": frozenset({"numpy"})}
"""For ``fork_servers.FRAMEWORKS``, where what a server loads makes no difference."""


@pytest.fixture
def runner() -> Iterator[ProcessRunner]:
    """A runner whose servers end with the test."""
    made = ProcessRunner()
    yield made
    made.close()


@pytest.fixture(name="runner")
def runner_that_leaves_nothing() -> Iterator[ProcessRunner]:
    """A runner whose servers end with the test; nothing is left below this process then."""
    before = {*descendants(os.getpid())}
    made = ProcessRunner()
    yield made
    made.close()
    assert not wait_until_gone({*descendants(os.getpid())} - before)


@pytest.fixture
def quickly_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers load NumPy and no framework, for what doesn't depend on it: PyTorch takes ten times as long."""
    monkeypatch.setattr(fork_servers, "FRAMEWORKS", QUICKLY_LOADED)


@dataclass(frozen=True)
class Studied:
    """A script in a folder of its own, with the servers that have its imports behind them.

    For tests that don't look at what becomes of servers: to load one takes as long as a fresh start.
    """

    script: Path
    known: Knowledge
    runner: ProcessRunner

    @classmethod
    def of(cls, text: str, known: Knowledge, folder: Path) -> Studied:
        """With its first server still to be loaded."""
        (script := folder / "train.py").write_text(textwrap.dedent(text), encoding="utf-8")
        return cls(script, known, ProcessRunner())

    def surround(self, patch: pytest.MonkeyPatch) -> None:
        """Has each trial find what the others found: a server forks those alone."""
        patch.chdir(self.script.parent)
        patch.setenv("XDG_CACHE_HOME", str(self.script.with_name("cache")))


def asked(
folder: Path, script: Path, *argv: str, fresh: bool, config: Any = None, **fields: Any) -> TrialRequest:
    """A trial of the script."""
    given: dict[str, Any] = {"knowledge": KNOWN, "window": QUICK, "limits": Limits(trial_timeout_s=60.0), **fields}
    return TrialRequest(
        folder, Script(str(script), argv), cpu_device(), Config(config or {}), fresh=fresh, **given
    )


def run(runner: ProcessRunner, request: TrialRequest) -> Outcome:
    """The trial to its outcome.

    Without pytest's own variable: it changes from test to test, and servers fork what finds the same as they did. One
    server at a time is loaded for trials that follow each other: each takes as long as a fresh start.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)
        patch.setattr(fork_servers, "AT_ONCE", 1)
        return runner.run(request, threading.Event())


def both(
    runner: ProcessRunner, folder: Path, script: Path, *argv: str, **fields: Any
) -> list[tuple[TrialRequest, Outcome]]:
    """The trial as it starts fresh, and as it is forked."""
    found = []
    for fresh in (True, False):
        request = asked(folder / ("fresh" if fresh else "forked"), script, *argv, fresh=fresh, **fields)
        outcome = run(runner, request)
        assert outcome.complete, (outcome, log_of(request))
        assert was_forked(request) is not fresh, runner.why_no_forks
        found.append((request, outcome))
    return found


def peaks_of(studied: Studied, folder: Path) -> dict[bool, list[int]]:
    """The most memory of two trials that start fresh (``True``), and of two that are forked, in bytes."""
    peaks: dict[bool, list[int]] = {True: [], False: []}
    window = replace(QUICK, warmup_s=1.5, min_s=2.0, max_s=3.0)
    for number in range(2):
        for fresh, found in peaks.items():
            own = folder / f"{number}-{fresh}"
            request = asked(own, studied.script, fresh=fresh, window=window, knowledge=studied.known)
            measurement = run(studied.runner, request).measurement
            assert measurement is not None and was_forked(request) is not fresh
            found.append(measurement.peak_host_bytes)
    return peaks


def was_forked(request: TrialRequest) -> bool:
    """Whether the trial that has run was forked."""
    written = json.loads((request.folder / "request.json").read_text(encoding="utf-8"))
    return float(written.get("spared_s", 0.0)) > 0.0


def log_of(request: TrialRequest) -> str:
    """What the trial printed."""
    return (request.folder / "log.txt").read_text(encoding="utf-8")


def records_of(request: TrialRequest, kind: str) -> list[dict[str, Any]]:
    """The trial's records of one kind, as they were sent."""
    lines = (request.folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def pid_of(folder: Path) -> int | None:
    """The pid that a trial in this folder has told of."""
    records = folder / "records.jsonl"
    if not records.exists():
        return None
    pids = (getattr(entry.record, "pid", None) for entry in wire.decode(records.read_bytes().split(b"\n")))
    return next((pid for pid in pids if pid is not None), None)


def lives(pid: int) -> bool:
    """Whether the process runs, or is stopped."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in "ZX"


def wait_until_gone(pids: set[int], seconds: float = 15.0) -> set[int]:
    """Those that still live after this time."""
    deadline = time.monotonic() + seconds
    while (left := {pid for pid in pids if lives(pid)}) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def below(pid: int) -> Iterator[int]:
    """The process and all below it."""
    yield pid
    yield from descendants(pid)
