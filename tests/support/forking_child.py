"""A process that has frameworks imported, and forks children of ``run_child`` off. Run as a text, never imported:

    python -c TEXT CHILD DESCRIPTOR MODULE...

A text of no file, as that is neither ours nor the user's to whom looks where a call comes from. A fork is what one of
autotune's own fork servers makes, whose functions these are, but that it has no guard, and a folder and variables of
its own.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import json
import os
import socket
import sys
import tempfile
from importlib import import_module
from typing import Any, NoReturn

LONGEST = 1 << 20


def main() -> None:
    """Serves until the connection is closed; in a fork, runs what ``CHILD`` runs."""
    path, descriptor, *modules = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("launched_child", path)
    assert spec is not None and spec.loader is not None
    launched = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(launched)
    launched._mount()
    gc.disable()  # nothing of an import is garbage: to look for it takes a fifth of the time
    refusal = of_child("fork_server")._load(os.path.abspath("train.py"), [(1, name, []) for name in modules], [])
    assert not refusal, refusal
    gc.enable()
    gc.collect()  # else every fork does, and copies all of their pages for it
    connection = socket.socket(fileno=int(descriptor))
    request, mode = of_child("records").ChildRequest, of_child("words").Mode
    of_child("fork_server").find_holders(request(seed=0), request(mode.APPLY, config={"batch_size": 1}))
    connection.send(b"ready")
    serve(connection)
    of_child("fork_server")._renew()
    try:
        of_child("execute").main()
    except SystemExit as stop:
        leave(stop.code)


def leave(code: Any) -> NoReturn:
    """Ends as Python does, but that it takes no library apart: that takes longer than most scripts.

    Threads are waited for, exit handlers run, and what the script has made is dropped.
    """
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    vars(sys.modules["__main__"]).clear()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code or 0)


def of_child(name: str) -> Any:
    """A module of the child's."""
    return import_module(f"_autotune_child.{name}")


def serve(connection: socket.socket) -> None:
    """Forks a process for each order: ``[folder, variables]``, with descriptors of its log and its records.

    It tells the process' pid, and how it ended, as ``os.waitpid`` does. Returns in the forked process.
    """
    while True:
        text, descriptors, _, _ = socket.recv_fds(connection, LONGEST, 2)
        if not text:
            os._exit(0)
        pid = os.fork()
        if not pid:
            connection.close()
            begin(*json.loads(text), *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps(pid).encode())
        connection.send(json.dumps(os.waitpid(pid, 0)[1]).encode())


def begin(folder: str, variables: dict[str, str], log: int, records: int) -> None:
    """Makes this process what the order says."""
    os.chdir(folder)
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = folder
    tempfile.tempdir = None  # it's read anew from the variables
    os.environ.clear()
    os.environ.update(variables, AUTOTUNE_RECORDS_FD=str(records))  # which has another number there
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)


if __name__ == "__main__":
    main()
