"""Starts the ranks of a trial as torchrun does, on this host, and ends all of them when one fails.

Launched by path with ``-I -S`` as the trial's first process, below its guard; standard library only.

    python -I -S rank_starter.py RANKS RECORDS_FD FOLDER LOG -- COMMAND...

Each rank runs the command with torchrun's environment variables and a pipe for its records, which are passed on to
``RECORDS_FD``, those of all but rank 0 with ``rank`` in each line. Rank 0 prints into the trial's log, rank N into
``LOG`` in ``FOLDER``, in which ``{}`` stands for N. The ranks die with this process, and it tells as a record how each
ended by itself.

    python -I -S rank_starter.py --adopt RECORDS_FD PID:FD...

A fork server's fork has started the ranks already, its own children, and becomes this for them: each with the pipe that
its records come from.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

PR_SET_PDEATHSIG = 1
RECORDS_ENV = "AUTOTUNE_RECORDS_FD"
GRACE_S = 1.0
"""Once a rank has failed the others may say within so many seconds what they make of that; then they are killed."""
ADDRESS = "127.0.0.1"
ADOPT = "--adopt"
OWN = ("RANK", "LOCAL_RANK", "ROLE_RANK", "MASTER_PORT")
"""Of ``environment_of``, what isn't the same in every rank of every trial."""


class Rank:
    """One rank's process, and what came of its records that is no whole line yet."""

    def __init__(self, number: int, pid: int, records: int) -> None:
        self.number = number
        self.pid = pid
        self.records = records
        self.torn = b""
        self.is_alive = True


def environment_of(rank: int, ranks: int, port: int, given: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would set on one host beside what is ``given``; threads as it sets them, unless the user does."""
    threads = {} if ranks == 1 or "OMP_NUM_THREADS" in given else {"OMP_NUM_THREADS": "1"}
    return {
        **threads,
        "RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank), "GROUP_RANK": "0",
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "ROLE_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default", "MASTER_ADDR": ADDRESS, "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }  # fmt: skip


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as asked:
        asked.bind((ADDRESS, 0))
        return int(asked.getsockname()[1])


def start(command: list[str], rank: int, ranks: int, port: int, log: str) -> Rank:
    """Starts one rank."""
    libc = ctypes.CDLL(None)
    starter = os.getpid()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        os.set_blocking(reader, False)
        return Rank(rank, pid, reader)
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != starter:
            os._exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if rank:
            own = os.open(log.format(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            os.dup2(own, 1)
            os.dup2(own, 2)
            os.close(own)
        os.environ.update(environment_of(rank, ranks, port, os.environ))
        if RECORDS_ENV in os.environ:
            os.set_inheritable(writer, True)
            os.environ[RECORDS_ENV] = str(writer)
        os.execvp(command[0], command)
    except BaseException as error:
        os.write(2, f"autotune: can't start {command[0]}: {error}\n".encode())
    os._exit(127)


def tagged(rank: int, line: bytes) -> bytes:
    """A record of a rank, as a line; one that isn't a record stays what it is."""
    return b'{"rank":%d,%s' % (rank, line[1:]) if rank and line.startswith(b'{"') else line


def pass_on(rank: Rank, records: int, ranks: Sequence[Rank] = ()) -> bool:
    """Passes on what has come; False where nothing more can come.

    Rank 0 ends a turn once the others have sent what belongs to it: of ``ranks`` they are passed on first.
    """
    while True:
        try:
            data = os.read(rank.records, 1 << 16)
        except BlockingIOError:
            return True
        for other in () if rank.number else ranks[1:]:
            pass_on(other, records)
        *lines, rank.torn = (rank.torn + data).split(b"\n")
        if lines:
            send(records, b"".join(tagged(rank.number, line) + b"\n" for line in lines))
        if not data:
            return False


def send(records: int, data: bytes) -> None:
    """Writes all of it; the study may be gone."""
    try:
        while data:
            data = data[os.write(records, data) :]
    except OSError:
        pass


def main() -> None:
    """Serves one trial; see the module's text."""
    first, records, given = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the ranks are told themselves, and this ends with them
    os.set_inheritable(records, False)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    if first == ADOPT:
        ranks = _adopted(given)
        os.write(wake, b"\n")  # one may have ended before anything told of that
    else:
        ranks = _started(int(first), folder=given[0], log=given[1], command=given[3:])
    failed = _serve(ranks, records, woken)
    sys.exit(1 if failed else 0)


def _started(count: int, folder: str, log: str, command: list[str]) -> list[Rank]:
    port = free_port()
    return [start(command, rank, count, port, os.path.join(folder, log)) for rank in range(count)]


def _adopted(told: Sequence[str]) -> list[Rank]:
    ranks = []
    for number, pair in enumerate(told):
        pid, reader = map(int, pair.split(":"))
        os.set_blocking(reader, False)
        ranks.append(Rank(number, pid, reader))
    return ranks


def _serve(ranks: list[Rank], records: int, woken: int) -> bool:
    """Returns when all have ended: whether one failed."""
    kill_at: float | None = None
    killed = False
    with selectors.DefaultSelector() as selector:
        selector.register(woken, selectors.EVENT_READ)
        for rank in ranks:
            selector.register(rank.records, selectors.EVENT_READ, rank)
        while any(rank.is_alive for rank in ranks):
            timeout = None if kill_at is None or killed else max(0.0, kill_at - time.monotonic())
            for key, _ in selector.select(timeout):
                if key.fd == woken:
                    os.read(woken, 4096)
                elif not pass_on(key.data, records, ranks):
                    selector.unregister(key.fd)
            if _reap(ranks, records, tell=not killed) and kill_at is None:
                kill_at = time.monotonic() + GRACE_S
            if kill_at is not None and not killed and time.monotonic() >= kill_at:
                killed = True
                for rank in ranks:
                    if rank.is_alive:
                        os.kill(rank.pid, signal.SIGKILL)
    return kill_at is not None


def _reap(ranks: list[Rank], records: int, *, tell: bool) -> bool:
    """Whether one of those that have ended since the last time failed."""
    failed = False
    for rank in ranks:
        if not rank.is_alive:
            continue
        pid, status = os.waitpid(rank.pid, os.WNOHANG)
        if not pid:
            continue
        rank.is_alive = False
        pass_on(rank, records)
        failed = failed or status != 0
        if tell:
            record = {
                "v": 1, "t": round(time.monotonic(), 6), "kind": "rank_ended", "rank": rank.number, "status": status,
            }  # fmt: skip
            send(records, json.dumps(record).encode() + b"\n")
    return failed


if __name__ == "__main__":
    main()
