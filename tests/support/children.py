"""Plugin: scripts in a real child. Most are forked off a process that has their framework imported.

An import takes 2 to 6 seconds of a processor, and hundreds of tests run such a script. `make test-all` starts them all
afresh (``--fresh``), as the tests in which the start itself matters always do.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tuner.child import shape, wire
from tuner.child.records import Exit, Note
from tuner.runner.watch import LEAVE_S

CHILD = Path(__file__).parents[2] / "tuner" / "child" / "__main__.py"
FORKING = Path(__file__).with_name("forking_child.py")
PYTHON = (sys.executable, "-X", "faulthandler")
# Those of tests that run at once would wait for each other most of the time.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
IMPORTED = {"torch": ("torch", "torch._dynamo"), "keras": ("keras",), "jax": ("jax", "jax.numpy"), "": ()}
"""What is imported for scripts of a framework; PyTorch imports the second one with the first optimizer. For all others
nothing but autotune's own modules, which take half a second.
"""
FRAMEWORKS = {"torch", "keras", "tensorflow", "jax"}
UNREAD = {
    "CUDA_VISIBLE_DEVICES", "PYTEST_CURRENT_TEST", "TF2_BEHAVIOR", "TF_CPP_MIN_LOG_LEVEL", "TMPDIR",
    "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME", wire.REQUEST_ENV, wire.RECORDS_ENV,
}  # fmt: skip
"""Variables that change in a test process, and by which no framework does anything else while it is imported."""
LONGEST = 1 << 20
# Ends after its six blocks, however much their rates differ: what a knob did shows by then.
QUICK_WINDOW = {
    "warmup_steps": 3, "warmup_s": 0.05, "block_s": 0.025, "min_blocks": 6, "min_s": 0.15, "max_s": 2.0,
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


class ForkedChild:
    """A child that a server has forked: what ``subprocess.Popen`` is to one that starts afresh."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = int(json.loads(connection.recv(LONGEST)))
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Sends it a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it."""
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Waits until it has ended; its status, as ``subprocess`` gives it."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(json.loads(self._connection.recv(LONGEST)))
        return self.returncode


class Server:
    """A process that has modules imported, and forks children off, one after the other."""

    def __init__(self, modules: tuple[str, ...], environment: Mapping[str, str], folder: Path) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = folder / "log.txt"
        with theirs, log.open("wb") as stream:
            command = [*PYTHON, "-c", FORKING.read_text(), str(CHILD), str(theirs.fileno()), *modules]
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, pass_fds=[theirs.fileno()], stdout=stream, stderr=stream
            )
        assert self._connection.recv(LONGEST), log.read_text()

    def start(self, folder: Path, environment: Mapping[str, str], log: int, records: int) -> ForkedChild:
        """Starts a child in the folder, with these variables, that writes into these descriptors."""
        order = json.dumps([str(folder), dict(environment)]).encode()
        socket.send_fds(self._connection, [order], [log, records])
        return ForkedChild(self._connection)

    def close(self) -> None:
        """Ends it, also where a process that a test has left behind holds the connection as well."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._process.wait()


class Children:
    """The servers of this test process, each started when a script first needs it. ``fresh``: there are none."""

    def __init__(self, make_folder: Callable[[str], Path], *, fresh: bool) -> None:
        self._make_folder = make_folder
        self._environment = {**ONE_THREAD, **os.environ}
        self._servers: dict[str, Server] = {}
        self._fresh = fresh

    def start(
        self, script: Path, environment: Mapping[str, str], log: int, records: int, *, fresh: bool
    ) -> subprocess.Popen[bytes] | ForkedChild:
        """Starts a child in the script's folder, with these variables, that writes into these descriptors."""
        server = None if fresh else self._server_for(script, environment)
        if server is not None:
            return server.start(script.parent, environment, log, records)
        return subprocess.Popen(
            [*PYTHON, str(CHILD)], cwd=script.parent, env=environment, pass_fds=[records], stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _server_for(self, script: Path, environment: Mapping[str, str]) -> Server | None:
        """One that has the script's framework imported, if any; None where the script is to start afresh.

        As where a test has set a variable, which a framework might read when it is imported.
        """
        if self._fresh or _of_all(environment) != _of_all(self._environment):
            return None
        framework = framework_of(script) or ""
        if framework not in self._servers:
            folder = self._make_folder(f"forks-{framework}")
            self._servers[framework] = Server(IMPORTED[framework], self._environment, folder)
        return self._servers[framework]

    def close(self) -> None:
        """Ends the servers."""
        for server in self._servers.values():
            server.close()


def _of_all(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in UNREAD}


def framework_of(script: Path) -> str | None:
    """The framework that the script imports before it does anything else; None where there is none, or two of them.

    What it does before might decide how a framework is imported. Keras and TensorFlow are one: each imports the other.
    JAX is imported in the fork where it is beside another one.
    """
    names: set[str] = set()
    try:
        body = ast.parse(script.read_text(encoding="utf-8")).body
    except SyntaxError:
        return None
    for statement in body:
        if statement is body[0] and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # what the script is for
        if isinstance(statement, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            names.add((statement.module or "").partition(".")[0])
        else:
            break
    found = names & FRAMEWORKS
    beside = found - {"jax"}
    if beside == {"torch"}:
        return "torch"
    if beside:
        return "keras" if beside <= {"keras", "tensorflow"} else None
    return "jax" if found else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares ``--fresh``."""
    parser.addoption("--fresh", action="store_true", help="start every child afresh, with its imports before it")


@pytest.fixture(scope="session")
def children(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """The servers, until the last test has ended."""
    made = Children(tmp_path_factory.mktemp, fresh=request.config.getoption("--fresh"))
    yield made
    made.close()


def _fields_of(entry: wire.Entry) -> dict[str, Any]:
    """A record as plain values, those that were left out on the wire included. The parent has to be able to read it."""
    record = entry.record
    assert not (isinstance(record, Note) and record.text.startswith(wire.UNREADABLE)), record
    fields = {field.name: shape.plain(getattr(record, field.name)) for field in dataclasses.fields(record)}
    return {"kind": record.kind, "t": entry.t, **fields}


def _records_of(reader: int, process: subprocess.Popen[bytes] | ForkedChild) -> list[dict[str, Any]]:
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


def _to_its_end(
    process: subprocess.Popen[bytes] | ForkedChild, reader: int, timeout: float
) -> tuple[int, list[dict[str, Any]]]:
    """The child's status and its records. One that hangs tells in its log where each of its threads is."""
    watchdog = threading.Timer(timeout, process.send_signal, [signal.SIGABRT])
    watchdog.start()
    try:
        records = _records_of(reader, process)
        return process.wait(), records
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()


@pytest.fixture
def run_child(tmp_path: Path, children: Children) -> Callable[..., ChildRun]:
    """Runs a script in a real child, as the runner would, and returns its records.

    ``fresh``: in a process that starts as a user's does, whatever the script imports.
    """

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
        timeout: float = 240.0,
        fresh: bool = False,
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
        ours = {wire.REQUEST_ENV: str(path), wire.RECORDS_ENV: str(writer)}
        environment = {**ONE_THREAD, **os.environ, **ours}
        # Into a file, as in the runner: a pipe that nobody reads yet would hold a script up that prints much.
        log = folder / "log.txt"
        starts_afresh = fresh or bool(module) or "threads" in (config or {})
        with log.open("wb") as stream:
            process = children.start(script, environment, stream.fileno(), writer, fresh=starts_afresh)
        os.close(writer)
        returncode, records = _to_its_end(process, reader, timeout)
        output = log.read_text(encoding="utf-8", errors="replace")
        assert returncode != -signal.SIGABRT, output
        told = [record["code"] for record in records if record["kind"] == "exit"]
        stayed = bool(told) and returncode == -signal.SIGKILL
        return ChildRun(told[-1] if stayed else returncode, output, records, folder)

    return run
