"""Small real programs that take turns and speak the wire, and what is left of them."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path

from tuner.child import wire
from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import Config, Script
from tuner.runner.guard import descendants
from tuner.runner.request import Limits, TrialRequest

OTHERS: set[int] = set()
TAKES_TURNS = """
import json, os, sys, time
request = json.load(open(os.environ["AUTOTUNE_REQUEST"]))
descriptor, turns = int(os.environ["AUTOTUNE_RECORDS_FD"]), int(os.environ["AUTOTUNE_TURNS_FD"])
me = request["config"].get("workers", 0)
def emit(kind, **fields):
    os.write(descriptor, (json.dumps({"v": 1, "t": time.monotonic(), "kind": kind, **fields}) + "\\n").encode())
def wait(enough):
    emit("turn", enough=enough)
    line = b""
    while not line.endswith(b"\\n"):
        line += os.read(turns, 1)
    return int(line)
emit("hello", pid=os.getpid(), python="3", executable="python3")
worker = os.fork()
if not worker:
    while True:
        time.sleep(0.01)  # goes on by itself, whoever's turn it is
emit("first_step", seconds=0.1)
count = 0
spent = 0.0
while (turn := wait(ENOUGH)):
    began = time.monotonic()
    BODY
    time.sleep(0.02)
    count += 1
    took = time.monotonic() - began
    spent += took
    emit("block", phase="window", steps=5, samples=50 * (1 + me), seconds=took, wait_s=0.0, turn=turn)
emit("window", complete=True, why="")
emit("exit", code=0)
os.kill(worker, 9)
"""


def requests_for(folder: Path, count: int = 2, **limits: float) -> list[TrialRequest]:
    chosen = Limits(**{"trial_timeout_s": 30.0, **limits})  # type: ignore[arg-type]
    configs = [Config({"workers": number} if number else {}) for number in range(count)]
    window = Window(max_s=0.3)
    return [
        TrialRequest(folder / f"{n:04d}", Script("train.py", ()), cpu_device(), config, window=window, limits=chosen)
        for n, config in enumerate(configs)
    ]


def program(folder: Path, body: str = "pass", enough: str = "count >= 12") -> Path:
    path = folder / "child.py"
    text = textwrap.dedent(TAKES_TURNS).replace("BODY", textwrap.indent(body, "    ").strip())
    path.write_text(text.replace("ENOUGH", enough))
    return path


def note_others() -> None:
    """Notes what runs below this process for other tests, such as a database."""
    OTHERS.clear()
    OTHERS.update(descendants(os.getpid()))


def nothing_is_left() -> bool:
    """No process of a trial below this one, neither running nor stopped."""
    deadline = time.monotonic() + 5.0
    while {*descendants(os.getpid())} - OTHERS:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def pids_in(folder: Path) -> set[int]:
    """The processes that any of the trials has told of, and what they have forked."""
    found = set()
    for file in folder.glob("0*/records.jsonl"):
        hello = file.read_bytes().split(b"\n")[0]
        for entry in wire.decode([hello]):
            pid = getattr(entry.record, "pid", None)
            if pid is not None:
                found |= {pid, *descendants(pid)}
    return found
