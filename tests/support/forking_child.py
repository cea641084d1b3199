"""A process that has frameworks imported, and forks children of ``run_child`` off. Run as a text, never imported:

    python -c TEXT CHILD DESCRIPTOR MODULE...

A text of no file, as that is neither ours nor the user's to whom looks where a call comes from. A fork is what one of
autotune's own fork servers makes, whose functions these are, but that it has no guard, and a folder and variables of
its own; and that it makes up for hooks where the forks before it had to alone (``Places``).
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import itertools
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

LONGEST = 1 << 20
LEARNED = Path("learned.json").absolute()


class Places:
    """Where modules hold what hooks replace: the first fork looks everywhere, and later ones where it found something.

    A fork makes up for hooks by a look at all names of all modules, and at all objects that refer to an original: of
    the 0.4 s of a core that PyTorch's shortest script takes, 0.3 s. What an import has put there is the same in each
    fork. One that replaces something else looks everywhere again, and so do autotune's own servers, always.
    """

    def __init__(self) -> None:
        self._originals: dict[int, object] = {}
        self._holders: dict[int, object] = {}
        self._modules: set[str] = set()
        self._imported = 0

    def begin(self) -> None:
        """In a fork, before there are hooks."""
        self._imported = len(sys.modules)
        patches, python_files = of_child("patches"), of_child("python_files")
        give, patch_taken = patches.give_to_others, python_files._patch_what_was_taken

        def give_to_others(stages: Any) -> None:
            originals = [each for owner, _, each in patches._ledger if is_module(owner)]
            if not self._knows(originals):
                self._learn(patches, originals)
                give(stages)
                return
            patches.sys, patches.gc = self._narrowed(), SimpleNamespace(get_referrers=self._referrers)
            give(stages)
            patches.sys, patches.gc = sys, gc

        def patch_what_was_taken(taken: Any) -> None:
            if self._knows(taken):
                python_files.sys = self._narrowed()
            patch_taken(taken)
            python_files.sys = sys

        patches.give_to_others, python_files._patch_what_was_taken = give_to_others, patch_what_was_taken

    def _knows(self, originals: Iterable[object]) -> bool:
        return all(id(each) in self._originals for each in originals)

    def _narrowed(self) -> SimpleNamespace:
        """``sys`` with the modules that hold something, and those that this fork has imported."""
        added = itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - self._imported))
        return SimpleNamespace(modules={name: sys.modules[name] for name in (*self._modules, *added)})

    def _referrers(self, *held: object) -> list[object]:
        """As ``gc.get_referrers``, among what was there before this fork and holds something, and what is new."""
        ids = {*map(id, held)}
        among = (*self._holders.values(), *gc.get_objects(0), *gc.get_objects(1))
        return [each for each in among if not ids.isdisjoint(map(id, gc.get_referents(each)))]

    def _learn(self, patches: Any, originals: list[object]) -> None:
        """Tells the server, by ids, which are the same there."""
        ids = {*map(id, originals)}
        modules = {owner.__name__ for owner, _, _ in patches._ledger if is_module(owner)}
        modules |= {name for name, each in sys.modules.items() if is_module(each) and holds(each, ids)}
        of_modules = {id(vars(each)) for each in list(sys.modules.values()) if is_module(each)}
        holders, held = set[int](), list[object](originals)
        for _ in range(patches._DEEPEST):
            found = [each for each in gc.get_referrers(*held) if each is not held and id(each) not in of_modules]
            holders.update(map(id, found))
            held = [each for each in found if type(each) in (dict, tuple)]
        LEARNED.write_text(json.dumps([[*ids], [*holders], [*modules]]))

    def take_in(self) -> None:
        """In the server, behind a fork: what that has found."""
        if not LEARNED.exists():
            return
        originals, holders, modules = json.loads(LEARNED.read_text())
        LEARNED.unlink()
        named = (value for each in list(sys.modules.values()) if is_module(each) for value in vars(each).values())
        here = {id(each): each for each in (*gc.get_objects(), *named)}
        self._originals |= {each: here[each] for each in originals if each in here}
        self._holders |= {each: here[each] for each in holders if each in here}
        self._modules |= {*modules} & sys.modules.keys()
        del here
        gc.collect()


def is_module(value: object) -> bool:
    """Whether it is one; a lazy one isn't asked."""
    return issubclass(type(value), ModuleType)


def holds(module: ModuleType, originals: set[int]) -> bool:
    """Whether one of these is behind a name of the module, or in a dictionary or a class of it."""
    for value in list(vars(module).values()):
        inner = value if type(value) is dict else vars(value) if issubclass(type(value), type) else {}
        plain = (each.__func__ if type(each) is staticmethod else each for each in inner.values())
        if id(value) in originals or any(id(each) in originals for each in plain):
            return True
    return False


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
    connection.send(b"ready")
    places = Places()
    serve(connection, places.take_in)
    places.begin()
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


def serve(connection: socket.socket, ended: Callable[[], None]) -> None:
    """Forks a process for each order: ``[folder, variables]``, with descriptors of its log and its records.

    It tells the process' pid, and how it ended, as ``os.waitpid`` does, and calls ``ended``. Returns in the forked
    process.
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
        ended()


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
