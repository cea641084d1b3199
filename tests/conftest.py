"""Fixtures shared by all tests."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tuner.child import shape, wire
from tuner.child.records import Exit, Note
from tuner.runner.watch import LEAVE_S

# What is imported here is needed by every test: `make check-cuda` runs where there is little beside PyTorch.
pytest_plugins = ["support.skips", "support.postgresql", "support.examples"]
CHILD = Path(__file__).parent.parent / "tuner" / "child" / "__main__.py"
# Ends after its six blocks, however much their rates differ: what a knob did shows by then.
QUICK_WINDOW = {
    "warmup_steps": 3, "warmup_s": 0.1, "block_s": 0.05, "min_blocks": 6, "min_s": 0.3, "max_s": 2.0,
    "target_half_width": 1e9,
}  # fmt: skip


@dataclass(frozen=True)
class ChildRun:
    """How one child ended and what it recorded."""

    returncode: int
    output: str
    records: list[dict[str, Any]]
    folder: Path

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Records of one kind."""
        return [record for record in self.records if record["kind"] == kind]

    @property
    def facts(self) -> dict[str, Any]:
        """The facts record."""
        return self.of("facts")[0]

    def evidence(self, knob: str) -> str:
        """What the child says of a knob."""
        return str(next(r for r in self.of("knob") if r["knob"] == knob)["evidence"])


@pytest.fixture
def write_script(tmp_path: Path) -> Callable[..., Path]:
    """Writes a script into the test's folder."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


def _fields_of(entry: wire.Entry) -> dict[str, Any]:
    """A record as plain values, those that were left out on the wire included. The parent has to be able to read it."""
    record = entry.record
    assert not (isinstance(record, Note) and record.text.startswith(wire.UNREADABLE)), record
    fields = {field.name: shape.plain(getattr(record, field.name)) for field in dataclasses.fields(record)}
    return {"kind": record.kind, "t": entry.t, **fields}


def _records_of(reader: int, process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """The child's records until it has ended. As in the runner, one whose script is through may not stay: TensorFlow's
    generator datasets can lock up while Python ends, without us as well.
    """
    records = []
    leaving = threading.Timer(LEAVE_S, process.kill)
    with os.fdopen(reader, "rb") as stream:
        for entry in wire.decode(stream):
            records.append(_fields_of(entry))
            if isinstance(entry.record, Exit):
                leaving.start()
    leaving.cancel()
    return records


@pytest.fixture
def run_child(tmp_path: Path) -> Callable[..., ChildRun]:
    """Runs a script in a real child, as the runner would, and returns its records."""

    def run(
        script: Path,
        config: Mapping[str, Any] | None = None,
        *,
        argv: tuple[str, ...] = (),
        knowledge: Mapping[str, Any] | None = None,
        window: Mapping[str, float] | None = None,
        module: str = "",
        mode: str = "trial",
        seed: int | None = None,
        probe: str = "",
        device: str = "cpu",
        max_device_bytes: int | None = None,
        used_device_bytes: int = 0,
        without: Collection[str] = (),
        strict: bool = False,
        timeout: float = 120.0,
    ) -> ChildRun:
        folder = tmp_path / "trial"
        folder.mkdir(exist_ok=True)
        request = {
            "v": wire.VERSION, "mode": mode, "script": str(script), "script_as_given": str(script), "module": module,
            "argv": list(argv), "device": device, "config": dict(config or {}), "knowledge": dict(knowledge or {}),
            "folder": str(folder), "window": {**QUICK_WINDOW, **(window or {})}, "seed": seed, "probe": probe or None,
            "max_device_bytes": max_device_bytes, "used_device_bytes": used_device_bytes, "strict": strict,
            "without": sorted(without),
        }  # fmt: skip
        (path := folder / "request.json").write_text(json.dumps(request))
        reader, writer = os.pipe()
        # One thread: those of tests that run at once would wait for each other most of the time.
        ours = {wire.REQUEST_ENV: str(path), wire.RECORDS_ENV: str(writer)}
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **ours}
        # Into a file, as in the runner: a pipe that nobody reads yet would hold a script up that prints much.
        log = folder / "log.txt"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", str(CHILD)], cwd=script.parent, env=environment,
                pass_fds=[writer], stdout=stream, stderr=subprocess.STDOUT,
            )  # fmt: skip
        os.close(writer)
        # A child that hangs tells where each of its threads is.
        watchdog = threading.Timer(timeout, process.send_signal, [signal.SIGABRT])
        watchdog.start()
        try:
            records = _records_of(reader, process)
            process.wait()
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
        output = log.read_text(encoding="utf-8", errors="replace")
        assert process.returncode != -signal.SIGABRT, output
        told = [record["code"] for record in records if record["kind"] == "exit"]
        stayed = bool(told) and process.returncode == -signal.SIGKILL
        return ChildRun(told[-1] if stayed else process.returncode, output, records, folder)

    return run


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a distribution with one module and its entry points, as pip would leave it on sys.path."""

    def make(module: str, source: str, **points: str) -> None:
        site = tmp_path / "site"
        record = site / f"{module}-1.0.dist-info"
        record.mkdir(parents=True)
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (record / "entry_points.txt").write_text(
            "".join(f"[autotune.{group}]\n{text}\n" for group, text in points.items())
        )
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return make


@pytest.fixture(autouse=True)
def locks_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a study that runs on this machine, nor for another test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
