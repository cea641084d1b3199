"""Holds loaded what a script imports first, and forks trials off, which start in a fraction of the time.

Started like the process of a trial, with ``wire.SERVER_ENV`` set to a socket's descriptor. It is told once what to
import, says whether it can serve, and from then on is sent an order and descriptors for each trial; see ``serve``.

It never runs an operation of a framework, and serves only while it has one thread, no descriptor and no child of its
own making: what a library starts at its import can't be forked. It leaves the collector of garbage alone, whose counts
a fork has as a fresh process would have them after the same imports. What a fresh process draws by chance a fork draws
anew, but for two things: the seed of ``hash`` (where PYTHONHASHSEED isn't set) and the layout of its memory are the
server's. /proc/self/environ is the server's as well.
"""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import importlib
import json
import os
import random
import signal
import sys
import time
from types import ModuleType
from typing import Any, NoReturn

from . import call_sites, hooked, open_libraries, preloaded, wire
from .execute import die_with
from .holders import Holders
from .hooks import PostImportFinder
from .preloaded import Asked, ByChance, GlobalGenerator, InstalledOnly, NotInstalled, Preloaded
from .records import ChildRequest

PR_SET_CHILD_SUBREAPER = 36
CONSTANT_SEED = 67280421310721
"""With which some versions of PyTorch begin in every process; others draw one."""
_LONGEST = 1 << 20
"""Bytes of a message: names of modules, or a command."""
_DESCRIPTOR_BYTES = 4
_MOST_DESCRIPTORS = 8


def main() -> None:
    """Serves until the parent closes the connection, or ends. Returns in a trial's process only.

    There everything is as in a fresh process that is about to run ``execute.main``.
    """
    connection = _socket.socket(fileno=int(os.environ.pop(wire.SERVER_ENV)))
    plan = json.loads(connection.recv(_LONGEST))
    die_with(plan["parent"])
    _as_after_exec()
    try:
        refusal = _why_not_load(connection) or _load(plan["script"], plan["imports"], plan["apart"]) or _why_not()
    except NotInstalled as error:
        refusal = str(error)
    except BaseException as error:
        refusal = f"an import failed: {type(error).__name__}: {error}"
    loaded_s = time.monotonic() - plan["spawned"]
    if not refusal:
        find_holders(ChildRequest(seed=0))  # with the hooks that shift seeds
    connection.send(json.dumps({"refusal": refusal[:1000], "loaded_s": loaded_s}).encode())
    if refusal:
        os._exit(0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards are nobody's to wait for
    _adopt_orphans()  # of guards that are killed: they are found, and ended with the server
    _serve(connection)


# What is imported


def _why_not_load(connection: _socket.socket) -> str:
    """Why what Python itself has started, by ``sitecustomize`` or a .pth file, can't be forked; "" where it can.

    A fork closes them, but those of libraries: an object that has one would have the next file that gets its number.
    """
    if (threads := _threads()) > 1:
        return f"it had started threads before any import: {threads - 1}"
    if open_libraries.of_others() - {0, 1, 2, connection.fileno()}:
        return "it had opened files before any import"
    strangers = InstalledOnly(call_sites.installed_folders(tuple(sys.path))).strangers()
    return f"{strangers[0]} lies in no installed package" if strangers else ""


def _load(script: str, imports: list[tuple[int, str, list[str]]], apart: list[str]) -> str:
    """Imports as the script's first lines do, from where it would; why that can't be served, or "".

    ``imports``: the line of each, the module, and the names that are taken from it: a warning names the line.
    ``apart``: variables in which forks differ.
    """
    names = hooked.libraries()
    state, undrawn = Preloaded(frozenset(sys.modules)), random.getstate()
    path, main_module = list(sys.path), sys.modules["__main__"]
    strict = InstalledOnly(call_sites.installed_folders(tuple(sys.path)))
    generator, by_chance, asked = GlobalGenerator(), ByChance(), Asked(apart)
    noting = {GlobalGenerator.NAME: generator.note, ByChance.NAME: by_chance.note}
    finders = [strict, PostImportFinder({**dict.fromkeys(names, state.note), **noting})]
    descriptors = open_libraries.of_others()
    stand_in = ModuleType("__main__")
    stand_in.__file__ = script
    sys.modules["__main__"] = stand_in
    sys.meta_path[:0] = finders
    folder = os.path.dirname(os.path.realpath(script))
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)
    argv, sys.argv = sys.argv, [script]
    for line, name, taken in imports:
        statement = f"from {name} import {', '.join(taken)}" if taken else f"import {name}"
        exec(compile("\n" * (line - 1) + statement, script, "exec", dont_inherit=True), stand_in.__dict__)
    sys.argv = argv
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in finders]
    sys.modules["__main__"] = main_module
    if not getattr(sys.flags, "safe_path", False) and sys.path[:1] == [folder]:
        del sys.path[0]
    if strict.refused:
        return f"{strict.refused[0]} lies in no installed package"
    if read := asked.found():
        return f"an import reads {read[0]}"
    if sys.path != path:
        return "an import changed sys.path"
    if open_libraries.of_others() != descriptors:
        return "an import opened a file or a device"
    drawn, drawn_by_numpy = preloaded.drawn_since(undrawn), generator.drawn()
    if drawn is None or drawn_by_numpy is None:
        return "an import draws many numbers by chance"
    state.drawn, state.drawn_by_numpy, state.seed_anew = drawn, drawn_by_numpy, by_chance.found()
    preloaded.here = state
    return ""


def find_holders(*requests: ChildRequest) -> None:
    """Looks once, for all forks, who holds what hooks replace in processes with such requests; where that fails, or for
    what other hooks replace, each looks for itself.
    """
    if preloaded.here is not None:
        with contextlib.suppress(ValueError):
            preloaded.here.holders = Holders(hooked.originals(requests))


def _why_not() -> str:
    """Why this process can't be forked; "" where it can.

    A first fork has libraries put their idle threads away, as OpenBLAS does, which makes them again where they are
    needed. It tells whether PyTorch has met its devices.
    """
    if (children := _children()) != 0:
        return f"an import started {children} processes"
    if refusal := _why_not_with_keras():
        return refusal
    child = os.fork()
    if not child:
        cuda: Any = sys.modules.get("torch.cuda")
        os._exit(1 if cuda is not None and cuda._is_in_bad_fork() else 0)
    if os.waitpid(child, 0)[1]:
        return "an import initialised CUDA"
    threads = _threads()
    return f"an import started threads: {threads - 1}" if threads > 1 else ""


def _why_not_with_keras() -> str:
    """Why TensorFlow, or what Keras computes with, can't be forked as it is; "" where it can, or isn't here.

    The import of TensorFlow or JAX starts no thread and meets no device; their first operation does both.
    """
    tensorflow: Any = sys.modules.get("tensorflow.python.eager.context")
    context = tensorflow.context_safe() if tensorflow is not None else None
    if context is not None and (context._initialized or context._physical_devices is not None):
        return "an import initialised TensorFlow"
    jax: Any = sys.modules.get("jax._src.xla_bridge")
    if jax is not None and jax._backends:
        return "an import initialised JAX"
    keras: Any = sys.modules.get("keras")
    backend = keras.backend.backend() if keras is not None else "tensorflow"
    return f"Keras computes with {backend}" if backend != "tensorflow" else ""


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _children() -> int:
    found = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children", "rb") as file:
            found += len(file.read().split())
    return found


# A trial


def _serve(connection: _socket.socket) -> None:
    """Forks a guard and a trial's process for each order; returns in the latter.

    An order is JSON: ``request`` (the path of it), ``variables`` (those of the environment that differ, null where one
    is absent), ``guard`` (the command that it becomes), ``given`` (variables that tell of descriptors), ``ranks`` (of
    each: ``log``, and ``variables`` of its own; none where the trial is one process), ``starter`` (the command that
    starts them). With it come descriptors: of the guard's orders and statuses, the log, and those that are ``given``.
    The trial's process answers with the guard's pid; the connection gives nothing where it couldn't.
    """
    while True:
        text, ancillary, _, _ = connection.recvmsg(
            _LONGEST, _socket.CMSG_SPACE(_MOST_DESCRIPTORS * _DESCRIPTOR_BYTES), _socket.MSG_CMSG_CLOEXEC
        )
        if not text:
            os._exit(0)
        descriptors = _descriptors(ancillary)
        if _threads() != 1:
            connection.send(b'{"refusal": "it has more than one thread by now"}')
            os._exit(0)
        if not os.fork():
            _start_trial(connection, json.loads(text), descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = []
    for level, kind, data in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            for start in range(0, len(data) - _DESCRIPTOR_BYTES + 1, _DESCRIPTOR_BYTES):
                found.append(int.from_bytes(data[start : start + _DESCRIPTOR_BYTES], sys.byteorder))
    return found


def _start_trial(connection: _socket.socket, order: dict[str, Any], descriptors: list[int]) -> None:
    """In the server's fork, which becomes the guard. Returns in the trial's process, a fork of that."""
    try:
        os.setsid()
        _adopt_orphans()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        guard = os.getpid()
        waits, go = os.pipe()
        child = os.fork()
        if child:
            connection.close()
            _become_guard(order["guard"], child, go, descriptors)
        os.close(go)
        printed = _become_trial(connection, order, guard, waits, descriptors)
        if order["ranks"]:
            _become_ranks(order, printed)
    except BaseException:
        os._exit(1)


def _become_guard(command: list[str], child: int, go: int, descriptors: list[int]) -> NoReturn:
    """Lets the trial go when the parent does, and is then the guard that every trial has."""
    for target, source in enumerate(descriptors[:3]):
        os.dup2(source, target)
    for descriptor in descriptors:
        os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if not os.read(0, 1):
        os.kill(child, signal.SIGKILL)
        os._exit(0)
    os.write(go, b"\n")
    os.execv(command[0], [*command, str(child)])


def _become_trial(
    connection: _socket.socket, order: dict[str, Any], guard: int, waits: int, descriptors: list[int]
) -> bytes:
    """Everything as after the start of a fresh process; then waits until it may go. What imports have printed."""
    os.setsid()
    die_with(guard)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _as_after_exec()
    _offer_to_oom_killer()
    printed = os.pread(1, os.fstat(1).st_size, 0)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (descriptors[2], 1), (descriptors[2], 2)):
        os.dup2(source, target)
    given = descriptors[3:]
    for number in open_libraries.of_others() - {0, 1, 2, connection.fileno(), waits, *given}:
        os.close(number)
    _print(printed)  # what a fresh process would have printed at its imports
    numbers = dict(zip(order["given"], map(str, given), strict=True))
    variables = {**order["variables"], wire.REQUEST_ENV: order["request"], **numbers}
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _renew()
    connection.send(json.dumps({"guard": guard}).encode())
    connection.close()
    if not os.read(waits, 1):
        os._exit(1)
    os.close(waits)
    return printed


def _print(text: bytes) -> None:
    while text:
        text = text[os.write(1, text) :]


def _become_ranks(order: dict[str, Any], printed: bytes) -> None:
    """Forks the ranks, and becomes what starts them where nothing is forked. Returns in each rank's process."""
    starter, records = os.getpid(), int(os.environ[wire.RECORDS_ENV])
    pids, readers = list[int](), list[int]()
    for rank in order["ranks"]:
        reader, writer = os.pipe()
        readers.append(reader)
        if not (pid := os.fork()):
            die_with(starter)
            for descriptor in (records, *readers):
                os.close(descriptor)
            _become_rank(rank, writer, printed)
            return
        os.close(writer)
        pids.append(pid)
    for descriptor in (records, *readers):
        os.set_inheritable(descriptor, True)
    pairs = [f"{pid}:{reader}" for pid, reader in zip(pids, readers, strict=True)]
    os.execv(order["starter"][0], [*order["starter"], str(records), *pairs])


def _become_rank(rank: dict[str, Any], records: int, printed: bytes) -> None:
    if rank["log"]:
        own = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(own, 1)
        os.dup2(own, 2)
        os.close(own)
        _print(printed)
    os.environ.update(rank["variables"], **{wire.RECORDS_ENV: str(records)})
    _renew()


def _renew() -> None:
    """What a fresh process draws by chance, or reads off the clock. Python's ``random`` seeds itself after a fork."""
    for seed_anew in preloaded.here.seed_anew if preloaded.here is not None else ():
        seed_anew()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.default_generator.initial_seed() != CONSTANT_SEED:
        torch.default_generator.seed()
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
    logging: Any = sys.modules.get("logging")
    if logging is not None:
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading.main_thread()._set_native_id()  # which Python forgets, here and there
    _look_for_modules_anew()


def _look_for_modules_anew() -> None:
    """What ``importlib.invalidate_caches`` does, which imports the reader of packages' metadata for it."""
    if "importlib.metadata" in sys.modules:
        importlib.invalidate_caches()
        return
    python: Any = sys.modules["_frozen_importlib_external"]
    for folder, finder in list(sys.path_importer_cache.items()):
        if finder is None or not os.path.isabs(folder):
            del sys.path_importer_cache[folder]
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()
    for other in sys.meta_path:
        if other is not python.PathFinder and hasattr(other, "invalidate_caches"):
            other.invalidate_caches()
    python._NamespacePath._epoch += 1


def _as_after_exec() -> None:
    """What a guard resets before it starts a program, and Python sets up when it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _offer_to_oom_killer() -> None:
    """As the guard does it before it starts a program."""
    try:
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(descriptor, b"1000")
    except OSError:
        pass  # some containers forbid it
    finally:
        os.close(descriptor)
