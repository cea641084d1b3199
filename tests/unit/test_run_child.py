"""``run_child``: what forks of its servers do as a fresh process does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

ENDS = """
    import torch
    import atexit, sys, threading, time

    class Made:
        def __del__(self):
            print("dropped")

    made = Made()
    atexit.register(print, "exit handler")
    threading.Timer(0.2, print, ["thread"]).start()
    sys.exit(3)
"""


def test_a_forked_script_ends_as_a_fresh_one_does(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """But for libraries, which its process doesn't take apart."""
    run = run_child(write_script(ENDS))
    assert run.returncode == 3
    assert run.output.splitlines()[-3:] == ["thread", "exit handler", "dropped"]
