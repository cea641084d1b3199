"""Starts the child: writes its request, makes its environment, and runs it under a guard."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, NoReturn

from tuner.child import unison, wire
from tuner.child.records import ChildRequest, Mode
from tuner.devices import allocators
from tuner.devices.present import kind_of
from tuner.knowledge import Knowledge
from tuner.masking import masked
from tuner.model import Config, Device, Script
from tuner.runner import guard
from tuner.runner.fork_server import GUARD, ForkedGuard
from tuner.runner.fork_servers import ForkServers, Launch
from tuner.runner.memory_file import memory_file
from tuner.runner.plain import sitecustomize
from tuner.runner.rank_launch import by_starter, forked_ranks, of_all_ranks, shared_by
from tuner.runner.request import TrialRequest
from tuner.storage import compile_cache
from tuner.storage.folder import LOG, REQUEST, make_private

CHILD = Path(wire.__file__).resolve().parent / "__main__.py"
PLAIN = Path(sitecustomize.__file__).resolve().parent
_GUARD_PATIENCE_S = guard.KILL_PATIENCE_S + 5.0


class Launched:
    """A running trial.

    ``records`` and ``statuses`` are file descriptors to read: the child's records, and the guard's lines ``pid N`` and
    ``exit STATUS``. ``forked_from``: as of ``Tree``. ``started``: the
    monotonic clock when it was started, whatever a fork server did before. ``close`` ends every process of the trial.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes] | ForkedGuard,
        records: int,
        request: Path,
        turns: int | None = None,
        *,
        started: float,
        forked_from: int | None = None,
        shared: tuple[int, int] | None = None,
    ) -> None:
        self._shared = shared
        self._request = request
        self._turns = turns
        assert process.stdin is not None and process.stdout is not None
        self.process = process
        self.forked_from = forked_from
        self.started = started
        self.records = records
        self.statuses = process.stdout.fileno()
        self._orders: IO[bytes] = process.stdin

    @property
    def guard(self) -> int:
        """The guard's pid."""
        return self.process.pid

    def steps_of_ranks(self) -> list[int]:
        """The steps that each of several ranks has taken; empty where there is one process."""
        if self._shared is None:
            return []
        descriptor, ranks = self._shared
        return unison.steps_of(os.pread(descriptor, unison.bytes_for(ranks), 0), ranks)

    def begin(self) -> None:
        """Lets the guard start the trial. Not at the launch: the guard's pid has to be in the request first."""
        self._orders.write(b"\n")
        self._orders.flush()

    def give_turn(self, turn: int) -> None:
        """Lets a trial that takes turns have its next one, by number; see ``tuner.child.turns``."""
        assert self._turns is not None
        try:
            os.write(self._turns, b"%d\n" % turn)
        except BrokenPipeError:
            pass  # it has ended: its guard tells how

    def close(self) -> None:
        """Has the guard kill what is left of the trial, and waits until it has ended. Closes ``records``."""
        try:
            self._orders.close()
        except OSError:
            pass  # the guard is dead already
        try:
            self.process.wait(_GUARD_PATIENCE_S)
        except subprocess.TimeoutExpired:
            # Something of the trial can't be killed: a driver call that never returns.
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        os.close(self.records)
        if self._shared is not None:
            os.close(self._shared[0])
        if self._turns is not None:
            os.close(self._turns)
        mask_request(self._request)



def mask_request(path: Path) -> None:
    """The child has read its arguments; what is kept of them holds no secrets."""
    try:
        request = wire.decode_request(path.read_text(encoding="utf-8"))
        argv = masked(request.argv)
        if argv != tuple(request.argv):
            _write_request(path, replace(request, argv=argv))
    except (OSError, ValueError):
        pass  # never written, or the disk is gone: the trial has ended with an error of its own


def launch(
    request: TrialRequest,
    python: str,
    child: Path,
    used_device_bytes: int | None = None,
    *,
    hidden: Sequence[str] | None = None,
    servers: ForkServers | None = None,
    stop: threading.Event | None = None,
) -> Launched:
    """Starts the trial's process under a guard. Raises ``OSError`` when folder or program can't be used.

    While what it is forked from is loaded, ``Interrupted`` when ``stop`` is set.

    ``used_device_bytes`` is what others hold of the device: the child must not count it as its own. ``hidden``: it
    takes turns with others, from its window on, which have created these paths; None where it takes none. ``servers``:
    what the trial may be forked from.
    """
    make_private(request.folder)
    path = request.folder.absolute() / REQUEST
    fork = servers.ready(_as_fresh(request, python, child), stop) if servers is not None else None
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        records, writer = _pipe(ours, theirs)
        os.set_blocking(records, False)
        given, turns = {wire.RECORDS_ENV: writer}, None
        if hidden is not None:
            turns, given[wire.TURNS_ENV] = reversed(_pipe(theirs, ours))
        log = os.open(request.folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        theirs.callback(os.close, log)
        if request.plain:
            command, environment = plain_command(request.script, python), plain_environment(request)
        else:
            command, environment = [python, str(child)], child_environment(request, path, *given.values())
        shared = None
        if request.ranks > 1:
            shared = shared_by(request.ranks, ours), request.ranks
            given[wire.RANKS_ENV] = shared[0]
            command = by_starter(command, request, writer)
            environment |= {} if request.plain else {wire.RANKS_ENV: str(shared[0])}
        started = time.monotonic()
        forked = fork.start(path, environment, log, given, forked_ranks(environment, request)) if fork else None
        if forked is None:
            fork, started = None, time.monotonic()
        process = forked or _start_guard(command, [*given.values()], log, environment)
        ours.pop_all()  # now the trial's: it closes them
    forked_from, spared_s = (None, 0.0) if fork is None else (fork.server, fork.spared_s)
    launched = Launched(process, records, path, turns, started=started, forked_from=forked_from, shared=shared)
    try:
        for_child = child_request(
            request, parent_pid=process.pid, started=started, used_device_bytes=used_device_bytes
        )  # fmt: skip
        _write_request(path, replace(for_child, hidden=tuple(hidden or ()), spared_s=spared_s))
        launched.begin()
    except BaseException:
        launched.close()
        raise
    return launched


def load_servers(
    servers: ForkServers, requests: Sequence[TrialRequest], python: str, child: Path, stop: threading.Event
) -> None:
    """As ``ForkServers.load_for_each``, for trials that are launched next."""
    servers.load_for_each([_as_fresh(request, python, child) for request in requests], stop)


def _as_fresh(request: TrialRequest, python: str, child: Path) -> Launch:
    return Launch(request, [python, str(child)], of_all_ranks(_environment(request), request.ranks))


def _pipe(reads: contextlib.ExitStack, writes: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe's two ends, each closed with the side that it is for."""
    reader, writer = os.pipe()
    reads.callback(os.close, reader)
    writes.callback(os.close, writer)
    return reader, writer


def _write_request(path: Path, request: ChildRequest) -> None:
    """Readable by this user alone: it holds the script's arguments. Raises ``OSError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(wire.encode_request(request))


def _start_guard(
    command: list[str], inherited: Sequence[int], log: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    guarded = [sys.executable, "-I", "-S", str(GUARD), ",".join(map(str, inherited)), str(log), "--", *command]
    return subprocess.Popen(
        guarded,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        pass_fds=(*inherited, log),
        start_new_session=True,
    )


def child_request(
    request: TrialRequest, *, parent_pid: int, started: float, used_device_bytes: int | None = None
) -> ChildRequest:
    """The trial as its child reads it. ``parent_pid`` is the guard's: the child's own parent."""
    limits = request.limits
    return replace(
        applied_request(request.script, request.device, request.config, request.knowledge),
        mode=Mode.TRIAL,
        folder=str(request.folder.absolute()),
        window=replace(request.window, max_s=min(request.window.max_s, limits.trial_timeout_s)),
        deadline_s=None if request.standing else limits.trial_timeout_s,
        seed=request.seed,
        probe=request.probe,
        max_device_bytes=limits.max_device_bytes,
        used_device_bytes=used_device_bytes or 0,
        parent_pid=parent_pid,
        spawned_monotonic=started,
        without=tuple(sorted(request.without)),
        rotation=request.rotation,
    )


def applied_request(script: Script, device: Device, config: Config, knowledge: Knowledge) -> ChildRequest:
    """The script with the config applied and nothing measured."""
    return ChildRequest(
        mode=Mode.APPLY,
        script=os.path.abspath(script.path) if script.path else "",
        script_as_given=script.path,
        module=script.module,
        argv=script.argv,
        device=kind_of(device).label_in_child(device),
        config=config,
        knowledge=knowledge,
        without=knowledge.without,
    )


def child_environment(
    request: TrialRequest, request_path: Path, records: int, turns: int | None = None
) -> dict[str, str]:
    """The environment of a trial, with the protocol set."""
    given = {wire.REQUEST_ENV: str(request_path), wire.RECORDS_ENV: str(records)}
    return {**_environment(request), **given, **({} if turns is None else {wire.TURNS_ENV: str(turns)})}


def _environment(request: TrialRequest, *, shown: bool = True) -> dict[str, str]:
    """The user's environment with the threads and, where it is ``shown``, the device set, and trackers off.

    The compile cache is the study's, whichever the user has: only that is known to have been empty.
    """
    return {
        **os.environ,
        **_compile_cache(request),
        **device_environment(request.device, request.config, shown=shown),
        **_silent_trackers(request.folder.absolute()),
        "PYTHONUNBUFFERED": "1",
    }


def plain_command(script: Script, python: str) -> list[str]:
    """The script under plain Python."""
    return [python, *(["-m", script.module] if script.module else [script.path]), *script.argv]


def plain_environment(request: TrialRequest) -> dict[str, str]:
    """The user's environment with trackers off, and with what keeps plain Python from writing over the user's files.

    It shows the script the user's own devices, as ``autotune run`` does.
    """
    script = request.script
    named = [value for argument in script.argv if os.sep in (value := argument.rpartition("=")[2])]
    homes = [os.getcwd(), *([os.path.dirname(os.path.abspath(script.path))] if script.path else []), *named]
    own = os.environ.get("PYTHONPATH")
    silent = _silent_trackers(request.folder.absolute())
    silenced = [
        module for module, names in _TRACKERS.items() if any(os.environ.get(name) != silent[name] for name in names)
    ]
    given = {
        "folder": str(request.folder.absolute()), "homes": homes, "caches": wire.CACHES, "path": own,
        "silenced": silenced,
    }  # fmt: skip
    search_path = str(PLAIN) if not own else f"{PLAIN}{os.pathsep}{own}"
    environment = _environment(request, shown=False)
    return {**environment, "PYTHONPATH": search_path, sitecustomize.ENV: json.dumps(given)}


def device_environment(device: Device, config: Config, *, alone: bool = True, shown: bool = True) -> dict[str, str]:
    """What shows a process its device (``DeviceKind.environment``), and the threads and the allocator of the config.

    Unless it is ``shown`` this device, the process sees whichever the user's environment shows.
    """
    threads = {"OMP_NUM_THREADS": str(config["threads"])} if "threads" in config else {}
    allocator = allocators.environment(config["allocator"], os.environ) if "allocator" in config else {}
    return {**(kind_of(device).environment(device, alone=alone) if shown else {}), **threads, **allocator}


def _compile_cache(request: TrialRequest) -> dict[str, str]:
    """A study's figures must not hang on what another process compiled before it; nor may that be run."""
    if request.compile_cache is None:
        return {}
    own = compile_cache.own(request.compile_cache.absolute())
    return {**compile_cache.environment(own, request.config), **kind_of(request.device).compile_cache(own)}


# A tracker's module → the variables that switch it off.
_TRACKERS = {
    "wandb": ("WANDB_MODE",), "comet_ml": ("COMET_MODE", "COMET_START_ONLINE"), "neptune": ("NEPTUNE_MODE",),
    "swanlab": ("SWANLAB_MODE",), "clearml": ("CLEARML_OFFLINE_MODE",), "mlflow": ("MLFLOW_TRACKING_URI",),
}  # fmt: skip


def _silent_trackers(folder: Path) -> dict[str, str]:
    """Trials are no experiments of the user's: nothing of them goes to a tracker's server."""
    return {
        "WANDB_MODE": "disabled",
        "COMET_MODE": "disabled",
        "COMET_START_ONLINE": "0",
        "NEPTUNE_MODE": "debug",
        "SWANLAB_MODE": "disabled",
        "CLEARML_OFFLINE_MODE": "1",
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",  # else its newest versions end the script
    }


def exec_applied(
    script: Script,
    device: Device,
    config: Config,
    knowledge: Knowledge,
    *,
    alone: bool = True,
    shown: bool = True,
    strict: bool = False,
    any_devices: bool = False,
    child: Path = CHILD,
) -> NoReturn:
    """Replaces this process by the script with the config applied: nothing of ours stays beside it.

    Unless it is ``alone`` it is one of several ranks, each of which takes its own card of all that are visible; unless
    it is ``shown`` the device alone, it sees all that it would under plain Python. ``strict``, ``any_devices``:
    see ``ChildRequest``.
    Its exit status, signals and standard streams are then the caller's own, as under plain Python.
    """
    request = replace(applied_request(script, device, config, knowledge), strict=strict, any_devices=any_devices)
    shown_device = device_environment(device, config, alone=alone, shown=shown)
    environment = {**os.environ, **shown_device, wire.REQUEST_ENV: _in_memory(wire.encode_request(request))}
    environment.pop(wire.RECORDS_ENV, None)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # what it leads to is full: the script, too, is told so where it prints
            stream.flush()
    os.execvpe(sys.executable, [sys.executable, str(child)], environment)


def _in_memory(request: str) -> str:
    """Where this process, and what takes its place, reads the request."""
    descriptor = memory_file("autotune-request")
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        file.write(request)
    os.set_inheritable(descriptor, True)
    return f"{wire.DESCRIPTORS}{descriptor}"
