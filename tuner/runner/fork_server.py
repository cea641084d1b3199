"""The parent's side of one fork server: a process that has a script's first imports behind it; see the child's side.

Nothing of a server's is a trial's fault: what doesn't answer by its deadline is killed, and the trial starts fresh.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tuner.child import wire
from tuner.runner import guard, rank_starter
from tuner.runner.guard import descendants, stat_fields
from tuner.runner.leading_imports import Import
from tuner.runner.request import Interrupted
from tuner.runner.tree import KILL_PATIENCE_S, signal_all

LOAD_PATIENCE_S = 60.0
FORK_PATIENCE_S = 5.0
_LONGEST = 1 << 16
GUARD = Path(guard.__file__).resolve()
RANK_STARTER = Path(rank_starter.__file__).resolve()


class ServerFault(Exception):
    """A server hangs, or has ended: it is of no use any more, and what it had begun is ended."""


class ServerRefusal(ServerFault):
    """A server says why it can't be forked: the next one couldn't, either."""


class ForkedGuard:
    """A guard that a fork server has started: what ``subprocess.Popen`` is to one of our own.

    ``stdin``: the guard's orders, ``stdout``: what it says.
    """

    def __init__(self, pid: int, server: ForkServer, handle: int, orders: int, statuses: int) -> None:
        self.pid = pid
        self._server = server
        self._handle = handle
        self.stdin: IO[bytes] | None = os.fdopen(orders, "wb")
        self.stdout: IO[bytes] | None = os.fdopen(statuses, "rb", buffering=0)
        self.has_ended = False

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended; the server reaps it, and nobody asks how. Raises ``TimeoutExpired``.

        The server has adopted what a guard leaves that was killed: that is ended as well.
        """
        if not self.has_ended:
            if not _is_readable(self._handle, timeout):
                raise subprocess.TimeoutExpired("guard", timeout or 0.0)
            self.has_ended = True
            os.close(self._handle)
            _kill_below(self._server)
        return 0

    def kill(self) -> None:
        """Kills it, and nothing else."""
        if not self.has_ended:
            try:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended


@dataclass(frozen=True)
class ForkedRank:
    """One of several ranks: the file that it prints into, "" for the trial's log, and its own ``variables``."""

    log: str
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Start:
    """What a server is to start. ``log``: the descriptor of it; ``given``: those of the protocol, by the variables that
    tell of them.

    ``variables``: those that aren't as in the server's environment; None for one that is absent. ``ranks``: in the
    order of their numbers; none where the trial is one process.
    """

    request: Path
    variables: Mapping[str, str | None]
    log: int
    given: Mapping[str, int]
    ranks: Sequence[ForkedRank] = ()


class ForkServer:
    """One server: made, waited for until it is ready, asked to ``start`` trials one after the other, and closed. Raises
    ``ServerFault``, and closes itself then.

    ``loaded_s``: what it took to be ready, which each of its ``trials`` is spared, so many by now. It ends with the
    thread that made it. ``apart``: variables in which its forks differ: it can't be forked where an import reads one.
    Raises ``OSError`` where it can't be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], script: str, imports: Sequence[Import],
        apart: Sequence[str] = (),
    ) -> None:  # fmt: skip
        began = time.monotonic()
        self.trials = 0
        self.loaded_s = 0.0
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._last: ForkedGuard | None = None
        self.is_closed = False
        with theirs, tempfile.TemporaryFile(buffering=0) as log:
            os.set_inheritable(theirs.fileno(), True)
            flags = os.O_RDWR | os.O_APPEND
            printed = os.open(f"/proc/self/fd/{log.fileno()}", flags)  # as a trial's log: what is written is added
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, pass_fds=(theirs.fileno(),),
                    env={**environment, wire.SERVER_ENV: str(theirs.fileno())}, start_new_session=True,
                )  # fmt: skip
            except BaseException:
                self._connection.close()
                raise
            finally:
                os.close(printed)
        plan = {"script": script, "imports": imports, "apart": apart, "parent": os.getpid(), "spawned": began}
        try:
            self._send(json.dumps(plan).encode(), ())
        except BaseException:
            self.close()
            raise

    def wait_until_ready(self, stop: threading.Event | None = None, ends_by: float = math.inf) -> None:
        """Returns when its imports are done. Raises ``ServerRefusal`` where they can't be forked, ``ServerFault`` where
        they aren't done in time (``ends_by`` the monotonic clock, at the latest), ``Interrupted`` when ``stop`` is set.
        """
        deadline = min(time.monotonic() + LOAD_PATIENCE_S, ends_by)
        try:
            while stop is not None and time.monotonic() < deadline and not _is_readable(self._connection.fileno(), 0.2):
                if stop.is_set():
                    raise Interrupted
            self.loaded_s = float(self._answer(max(0.0, deadline - time.monotonic()))["loaded_s"])
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The server's own."""
        return self._process.pid

    @property
    def is_free(self) -> bool:
        """Whether none of its trials lives: its memory is shared with one at a time."""
        return self._last is None or self._last.has_ended

    def start(self, given: Start) -> ForkedGuard:
        """Has a trial forked, which waits for its guard's order. Raises ``ServerFault``, having ended the server."""
        theirs_orders, orders = os.pipe()
        statuses, theirs_statuses = os.pipe()
        python = [sys.executable, "-I", "-S"]
        order = {
            "request": str(given.request), "variables": dict(given.variables), "given": [*given.given],
            "guard": [*python, str(GUARD), guard.ADOPT],
            "ranks": [{"log": rank.log, "variables": dict(rank.variables)} for rank in given.ranks],
            "starter": [*python, str(RANK_STARTER), rank_starter.ADOPT],
        }  # fmt: skip
        descriptors = (theirs_orders, theirs_statuses, given.log, *given.given.values())
        try:
            self._send(json.dumps(order).encode(), descriptors)
            pid = int(self._answer(FORK_PATIENCE_S)["guard"])
            self._last = ForkedGuard(pid, self, self._handle_of(pid), orders, statuses)
        except BaseException:
            os.close(orders)
            os.close(statuses)
            self.close()
            raise
        finally:
            os.close(theirs_orders)
            os.close(theirs_statuses)
        self.trials += 1
        return self._last

    def _handle_of(self, pid: int) -> int:
        """A descriptor of the guard, which waits for its order and so lives."""
        try:
            handle = os.pidfd_open(pid)
        except OSError as error:
            raise ServerFault(f"a guard ended at once: {error}") from None
        fields = stat_fields(pid)
        if fields is None or int(fields[1]) != self.pid:
            os.close(handle)
            raise ServerFault("a guard ended at once")
        return handle

    def _send(self, message: bytes, descriptors: Sequence[int]) -> None:
        try:
            socket.send_fds(self._connection, [message], list(descriptors))
        except OSError as error:
            raise ServerFault(f"the fork server has ended: {error}") from None

    def _answer(self, patience_s: float) -> dict[str, Any]:
        if not _is_readable(self._connection.fileno(), patience_s):
            raise ServerFault("the fork server said nothing in time")
        try:
            told: dict[str, Any] = json.loads(self._connection.recv(_LONGEST))
        except (OSError, ValueError) as error:
            raise ServerFault(f"the fork server has ended: {error}") from None
        if told.get("refusal"):
            raise ServerRefusal(str(told["refusal"]))
        return told

    def close(self) -> None:
        """Ends the server, and what it has begun to start; a trial that runs already stays, with its guard."""
        if self.is_closed:
            return
        self.is_closed = True
        self._connection.close()
        signal_all([self.pid], signal.SIGSTOP)  # so that it starts no other
        signal_all(set(descendants(self.pid)) - self._of_living_trial(), signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def _of_living_trial(self) -> set[int]:
        if self._last is None or self._last.has_ended:
            return set()
        return {self._last.pid, *descendants(self._last.pid)}


def _kill_below(server: ForkServer) -> None:
    """Everything, again for those born meanwhile. A server has one trial at a time, and nothing else below it.

    Nothing once it is closed: its pid may be a stranger's then.
    """
    deadline = time.monotonic() + KILL_PATIENCE_S
    while not server.is_closed and (left := descendants(server.pid)) and time.monotonic() < deadline:
        signal_all(left, signal.SIGKILL)
        time.sleep(0.01)


def _is_readable(descriptor: int, patience_s: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if patience_s is None else patience_s * 1000))
