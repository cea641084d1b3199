"""A small program that speaks the wire: a trial whose window has so many steady blocks."""

from __future__ import annotations

import textwrap

_PROGRAM = textwrap.dedent(
    """
    import json, os, time
    descriptor = int(os.environ["AUTOTUNE_RECORDS_FD"])
    def emit(kind, **fields):
        os.write(descriptor, (json.dumps({"v": 1, "t": time.monotonic(), "kind": kind, **fields}) + "\\n").encode())
    emit("hello", pid=os.getpid(), python="3", executable="python3")
    emit("first_step", seconds=0.1)
    for _ in range(BLOCKS):
        time.sleep(0.1)
        emit("block", phase="window", steps=5, samples=50, seconds=0.1, wait_s=0.01, flagged=False)
    emit("window", complete=True, why="")
    emit("exit", code=0)
    """
)


def steady_child(blocks: int) -> str:
    """The text of the program: blocks of 0.1 s each."""
    return _PROGRAM.replace("BLOCKS", str(blocks))
