"""Which line of the script a trial is at that is about to be ended: what takes its time, or what it waits in."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from tuner.child.records import Hello
from tuner.child.wire import WHERE_SIGNAL, Entry

PATIENCE_S = 1.0
_FRAME = re.compile(rb'^  File "([^"\n]+)", line (\d+) in', re.MULTILINE)
_HEAD = b"(most recent call first):\n"
# Installed packages, Python's own library, what lies in no file, and our own.
_NOT_THE_SCRIPTS = re.compile(rb"/(?:site|dist)-packages/|/lib/python3[^/]*/[^/]|^<|/tuner/child/")


def line_reached(entries: Sequence[Entry], pids: Collection[int], log: Path) -> str:
    """``, at line 7 of train.py``, for what is told of a trial; "" where it doesn't answer.

    ``entries``: what it has sent; its process, of several ranks the leading one's, is asked only where that is known,
    still among ``pids``, and has a handler for it: the signal would end it otherwise.
    """
    hellos = (entry.record for entry in entries if not entry.rank)
    pid = next((hello.pid for hello in hellos if isinstance(hello, Hello)), None)
    if pid is None or pid not in pids or not _answers(pid):
        return ""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        os.kill(pid, WHERE_SIGNAL)
        return _read(file.fileno())
    return ""


def _answers(pid: int) -> bool:
    """Whether the process catches the signal, as the kernel says."""
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
        return bool(int(caught, 16) >> (WHERE_SIGNAL - 1) & 1)
    return False


def _read(descriptor: int) -> str:
    """What it writes from here on, as soon as a line of the script's is in it."""
    told, ends = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        told += os.read(descriptor, 1 << 20)
        stack = told.partition(_HEAD)[2]
        for name, line in _FRAME.findall(stack):
            if not _NOT_THE_SCRIPTS.search(name):
                return f", at line {int(line)} of {os.path.basename(name.decode(errors='replace'))}"
        time.sleep(0.02)
    return ""
