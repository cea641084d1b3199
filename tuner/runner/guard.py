"""A small process between the study and a trial, so that nothing of the trial outlives either of them.

It adopts what the trial's processes leave behind (PR_SET_CHILD_SUBREAPER), so a daemonised grandchild is
still found by walking parents, and it ends the whole tree when the study dies, even by SIGKILL: its standard
input then reads end of file. Launched by path with ``-I -S``, standard library only: a start costs
milliseconds, and the fork of the trial happens in a process with one thread.

    python -I -S guard.py FD,FD LOG_FD -- COMMAND...

It waits for a line on its standard input, starts the command, writes ``pid N`` and, when the command has
ended, ``exit STATUS`` (as ``waitpid`` gives it). At end of file it kills what is left and ends.

    python -I -S guard.py --adopt PID

A fork server's fork has read the line and started the trial already, its own child, and becomes the guard of that.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_PATIENCE_S = 10.0
CLEARING_S = 4.0
"""For so long what clears up after others may outlive these; it ends by itself, PyTorch's 2 s after them."""
CLEARS_UP = (b"resource_tracker import main", b"torch_shm_manager")
"""In the command of such a process: multiprocessing's and joblib's, and PyTorch's."""
ADOPT = "--adopt"


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third on (state, ppid, …), or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold anything, parentheses too.
    return text[text.rfind(b")") + 2 :].decode("ascii", "replace").split()


def descendants(root: int) -> list[int]:
    """Every living process below ``root``, found by walking parents; zombies left out, ``root`` too."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(int(name))):
            children.setdefault(int(fields[1]), []).append(int(name))
            if fields[0] in "ZX":
                zombies.add(int(name))
    found: list[int] = []
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue.extend(children.get(pid, ()))
    return [pid for pid in found if pid not in zombies]


def start(command: list[str], log: int, keep: list[int]) -> int:
    """Starts the trial's process in a session of its own and returns its pid."""
    libc = ctypes.CDLL(None)
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(1)
        _offer_to_oom_killer()
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target, inheritable=True)
        os.set_inheritable(log, False)
        for descriptor in keep:
            os.set_inheritable(descriptor, True)
        os.execvp(command[0], command)
    except BaseException as error:
        os.write(2, f"autotune: can't start {command[0]}: {error}\n".encode())
    os._exit(127)


def _offer_to_oom_killer() -> None:
    """When the machine runs out of memory, the trial goes first, not the study or the user's desktop."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass  # some containers forbid it; the trial's own memory cap remains


def reap(child: int) -> tuple[int | None, bool]:
    """Reaps whatever has ended, adopted processes too.

    Returns the child's status, once it is among them, and whether this process has children left.
    """
    status = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, False
        if pid == 0:
            return status, True
        if pid == child:
            status = ended


def kill_each(pids: Iterable[int], *, spares: bool) -> None:
    """KILL to each that still lives; with ``spares`` to none that clears up after the others, which goes on."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT if spares and clears_up(pid) else signal.SIGKILL)
        except OSError:
            pass  # it ended by itself meanwhile


def clears_up(pid: int) -> bool:
    """Whether the process removes what others leave in shared memory, which no end of theirs would give back."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return False
    return any(mark in command for mark in CLEARS_UP)


def kill_descendants(child: int) -> int | None:
    """Kills everything below this process and reaps it; the child's status if it ended here.

    Only what has been reaped is gone: a zombie whose threads are still ending holds its memory.
    """
    status, has_children = reap(child)
    began = time.monotonic()
    while has_children and (passed_s := time.monotonic() - began) < KILL_PATIENCE_S:
        kill_each(descendants(os.getpid()), spares=passed_s < CLEARING_S)
        time.sleep(0.01)
        ended, has_children = reap(child)
        status = ended if ended is not None else status
    return status


def main() -> None:
    """Serves one command; see the module's text for the protocol."""
    adopted = int(sys.argv[2]) if sys.argv[1] == ADOPT else None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if adopted is None and not os.read(0, 1):
        return
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    child = _start_command(*sys.argv[1:3], command=sys.argv[4:]) if adopted is None else adopted
    try:
        _tell(f"pid {child}")
        _serve(child, woken)
    finally:
        status = kill_descendants(child)
        if status is not None:
            _tell(f"exit {status}")


def _start_command(descriptors: str, log: str, *, command: list[str]) -> int:
    """Starts it, and keeps none of its descriptors."""
    keep = [int(text) for text in descriptors.split(",") if text]
    child = start(command, int(log), keep)
    for descriptor in (*keep, int(log)):
        os.close(descriptor)
    return child


def _serve(child: int, woken: int) -> None:
    status, _ = reap(child)
    if status is not None:
        _tell(f"exit {status}")  # it had ended before anything told of that
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == 0 and not os.read(0, 1):
                    return
                if key.fd == woken:
                    os.read(woken, 4096)
                    status, _ = reap(child)
                    if status is not None:
                        _tell(f"exit {status}")


def _tell(line: str) -> None:
    try:
        os.write(1, line.encode() + b"\n")
    except OSError:
        pass  # the study is gone; what is left to do is to clean up


if __name__ == "__main__":
    main()
