"""How the workers start that a config adds to a DataLoader, in a trial and under ``autotune run`` alike.

They are forked, also where Python starts processes anew unless it is told otherwise (from 3.14 on): such a process
imports the script, and is given the data by pickle, of which a script that has no workers knows nothing. One that
trains at its top would train in each of them.

Not beside JAX, whose client computes in threads from its first operation on. A fork has their locks and none of them,
and may wait for one forever: JAX warns of each. There they are started anew ("spawn"), and whether the script can be
imported, and its data be pickled, is looked at before.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

from ..feeds import FED
from ..records import Value
from ..session import Session
from .imported import is_guard, is_made_again, parsed, set_since
from .loader_places import Loader
from .types import Arguments

FORK, SPAWN = "fork", "spawn"
WORKERS = ("num_workers", "prefetch_factor", "persistent_workers")
"""Knobs that turn nothing without workers."""
GIVEN = ("dataset", "collate_fn", "worker_init_fn")
"""What a worker is given of the script's."""
AHEAD = "XLA_PYTHON_CLIENT_PREALLOCATE"
"""Whether JAX takes memory of a card before it needs it."""
MOST_BYTES = 256 << 20
"""Of data that are copied to each worker."""
NO_WORKERS = "the loader can have no workers"
NO_FORK = "workers forked beside JAX's threads may wait forever"
UNGUARDED = f'{NO_FORK}, and none can be started anew: nothing keeps the training behind if __name__ == "__main__"'
_SETTINGS = (
    "DEFINE", "mark_", "flags_", "add_argument", "update", "set_", "use", "basicConfig", "seed", "manual_seed",
    "filterwarnings", "simplefilter", "disable", "enable", "append", "insert", "register", "setdefault",
)  # fmt: skip
"""Beginnings of the names of methods that a script may call when it is imported: they set something in its process."""
_ONCE = frozenset({
    "init", "init_process_group", "initialize", "start_run", "create_experiment", "SummaryWriter", "FileHandler",
    "create_file_writer", "mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "makedirs", "mkdir",
    "Popen", "check_call", "check_output", "system", "train", "fit", "main",
})  # fmt: skip
"""Names of what a script calls once: runs, processes, folders, a training."""
_DEFAULTS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("torch", "get_default_dtype", "torch.float32", ("set_default_dtype", "set_default_tensor_type")),
    ("torch", "get_default_device", "cpu", ("set_default_device",)),
)
"""What data are made as where nothing else is said: module, who tells it, what an import finds, and who sets it."""
X64 = "jax_enable_x64"
_DEFINES = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Pass
)  # fmt: skip


def look_at(session: Session, entry: Loader, given: Arguments) -> None:
    """A loader is made with these arguments: whether a config may add workers to it."""
    entry.has_context = given.get("multiprocessing_context") is not None
    if is_beside_threads(session, given):
        entry.refused_beside = refusals(given)
        if session.trained_by:
            entry.refused = {**entry.refused_beside, **entry.refused}


def add_workers(session: Session, entry: Loader, given: Arguments, values: Mapping[str, Value]) -> None:
    """Where the config, of which these ``values`` were set, has added workers to it: says how they start, and last."""
    added = "num_workers" in entry.changed and not entry.written["num_workers"] and session.trained_by in FED
    lasts = added and start_anew(given)
    entry.starts_anew = added and not entry.has_context and given.get("multiprocessing_context") == SPAWN
    if lasts and "persistent_workers" not in {*values, *entry.refused}:
        given["persistent_workers"] = True
        entry.changed.add("persistent_workers")


def fork_added(session: Session, entry: Loader, given: Arguments) -> None:
    """Has the workers that the config gives to a loader forked, whoever sets their number, where nobody has chosen.

    Of a patch of ours the loader tells whether it has done so; an option of the script's sets that of several loaders.
    """
    as_written = entry.written if session.knobs.wants("num_workers") else session.request.knowledge.as_written
    is_added = "num_workers" in session.request.config and as_written.get("num_workers") == 0
    if is_added and given.get("num_workers") and not given.get("multiprocessing_context"):
        given["multiprocessing_context"] = None if _trains_beside(session) else said_to_fork()


def said_to_fork() -> str | None:
    """What says that processes are forked where Python wouldn't by itself, None where nothing has to, or may.

    A script that has chosen how processes start has them start so.
    """
    by_default = multiprocessing.get_all_start_methods()[0]
    return FORK if by_default == start_method() == "forkserver" else None


def may_last(session: Session) -> bool:
    """Whether the config may have workers last that the script ends."""
    added = session.trained_by in FED and session.knobs.wants("num_workers")
    return added or session.knobs.wants("persistent_workers")


def is_beside_threads(session: Session, given: Arguments) -> bool:
    """Whether JAX trains, or may, on what a loader gives that has no workers by the script itself, and may get some."""
    if not (session.measuring or session.knobs.wants("num_workers")):
        return False
    return _trains_beside(session) and not given.get("num_workers")


def _trains_beside(session: Session) -> bool:
    return session.trained_by in FED or (not session.trained_by and any(name in sys.modules for name in FED))


def refusals(given: Arguments) -> dict[str, str]:
    """Knob → why such a loader can have no workers; {} where they can be started anew."""
    why = why_unimportable() or _why_other_variables(given) or _why_other_defaults() or _why_unpicklable(given)
    return {**dict.fromkeys(WORKERS, NO_WORKERS), "num_workers": why} if why else {}


def start_anew(given: Arguments) -> bool:
    """Has the workers that the config adds started anew, unless the script has chosen how processes start.

    They import what the script imports, which takes seconds: so they last, unless the config says otherwise. Returns
    whether they do by this.
    """
    if not given.get("num_workers") or given.get("multiprocessing_context") or not is_usual():
        return False
    given["multiprocessing_context"] = SPAWN
    return not given.get("persistent_workers")


@contextmanager
def starting(entry: Loader) -> Iterator[None]:
    """While it lasts the workers of such a loader are started.

    On a card JAX takes three quarters of the memory with its first operation, in each process: so would a worker that
    is started anew, whose script makes a key of random numbers as it is imported, beside the training. It takes what it
    needs instead, unless the environment says otherwise.
    """
    if not entry.starts_anew or AHEAD in os.environ:
        yield
        return
    os.environ[AHEAD] = "false"
    try:
        yield
    finally:
        os.environ.pop(AHEAD, None)


def start_method() -> str:
    """How multiprocessing starts processes where nothing else is said."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def is_usual() -> bool:
    """Whether that is as Python does by itself, or has done before 3.14."""
    return start_method() in (FORK, multiprocessing.get_all_start_methods()[0])


def why_unimportable() -> str:
    """Why a worker that is started anew can't import the script, "" where it can.

    By the line of the script in which the loader is made: one that is run when it is imported would run again.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            guarded, line = _guards(frame.f_code.co_filename)
            if not any(first <= frame.f_lineno <= last for first, last in guarded):
                return UNGUARDED
            return f"{NO_FORK}, and those started anew would run line {line} of the script again" if line else ""
        frame = frame.f_back
    return f"{NO_FORK}, and nothing shows whether they can be started anew"


@cache
def _guards(file: str) -> tuple[Sequence[tuple[int, int]], int]:
    """Lines that aren't run when the script is imported, and the first that is and does more than define; 0: none."""
    tree = parsed(file)
    guards = [node for node in tree.body if isinstance(node, ast.If) and is_guard(node)]
    guarded = [(node.body[0].lineno, node.body[-1].end_lineno or 0) for node in guards]
    return guarded, next(_doing(tree.body), 0)


def _doing(body: Sequence[ast.stmt]) -> Iterator[int]:
    """Lines of statements that do more than define, or set something in their process."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _doing(node.orelse if is_guard(node) else [*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handled = [each for handler in node.handlers for each in handler.body]
            yield from _doing([*node.body, *handled, *node.orelse, *node.finalbody])
        elif isinstance(node, ast.Expr):
            called = getattr(node.value, "func", None)
            is_setting = isinstance(node.value, ast.Constant) or _name(called).startswith(_SETTINGS)
            if not is_setting or _writes(node.value):
                yield node.lineno
        else:
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            if not isinstance(node, _DEFINES) or (value is not None and _writes(value)):
                yield node.lineno


def _writes(node: ast.AST) -> bool:
    """Whether it opens a file for writing, which would be empty by that, or begins what a script begins once."""
    if isinstance(node, ast.Lambda):
        return False
    if isinstance(node, ast.Call):
        modes = {each.arg: each.value for each in node.keywords if each.arg in ("mode", "filemode")}
        found = [*node.args[isinstance(node.func, ast.Name) :], *modes.values()] if modes or _opens(node) else []
        words = [each.value for each in found if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if _name(node.func) in _ONCE or any(set(word) <= set("rwaxbt+") and set(word) & set("wax+") for word in words):
            return True
    return any(map(_writes, ast.iter_child_nodes(node)))


def _opens(call: ast.Call) -> bool:
    return "open" in _name(call.func).lower() or _name(call.func).endswith("File")


def _name(called: ast.expr | None) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _why_other_variables(given: Arguments) -> str:
    """A worker that is started anew mustn't read other data, and nobody would see that it does."""
    data = {name: given.get(name) for name in GIVEN}
    try:
        name = set_since(data)
    except Exception:  # the user's own classes may raise anything
        name = "what its data hold"
    return f"{NO_FORK}, and those started anew may not have {name} as the script has set it" if name else ""


def _why_other_defaults() -> str:
    """A process that is started anew has the defaults of its libraries as an import leaves them: its data would be
    other numbers, and nobody would see that either.
    """
    for module, told_by, imported, setters in _DEFAULTS:
        tells = getattr(sys.modules[module], told_by, None)
        if tells is not None and str(tells()) != imported and not _is_set_by_import(setters):
            return f"{NO_FORK}, and those started anew wouldn't have what {setters[0]} was given"
    jax: Any = sys.modules.get("jax")
    config = getattr(jax, "config", None)
    by_environment = os.environ.get(X64.upper(), "").lower() in ("1", "true", "t", "yes", "y", "on")
    if getattr(config, X64, False) and not by_environment and not _is_set_by_import((X64,)):
        return f"{NO_FORK}, and those started anew wouldn't have {X64}"
    return ""


def _is_set_by_import(setters: Sequence[str]) -> bool:
    """Whether an import of the script sets it, too: by a name, or a word, that a statement of its own holds."""
    tree = parsed(str(getattr(sys.modules.get("__main__"), "__file__", "")))
    return any(
        {getattr(node, name, None) for name in ("id", "attr", "value")} & set(setters)
        for statement in tree.body if isinstance(statement, (ast.Expr, ast.Assign))
        for node in ast.walk(statement) if isinstance(node, (ast.Name, ast.Attribute, ast.Constant))
    )  # fmt: skip


class _Counting:
    """A file that nothing is kept of."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Any) -> int:
        """Raises ``OverflowError`` where it is too much."""
        return self.add(memoryview(data).nbytes)

    def add(self, size: int) -> int:
        """The same of so many bytes that nobody copies."""
        self.size += size
        if self.size > MOST_BYTES:
            raise OverflowError
        return size


class _Pickler(pickle.Pickler):
    """Of arrays it counts the bytes: to pickle them copies them, and reads all of a file that is mapped into memory."""

    def __init__(self, counting: _Counting) -> None:
        def counted(buffer: pickle.PickleBuffer) -> None:
            counting.add(buffer.raw().nbytes)

        super().__init__(counting, pickle.HIGHEST_PROTOCOL, buffer_callback=counted)
        self._counting = counting

    def reducer_override(self, value: Any) -> Any:
        """What stands for an array. Raises ``PicklingError`` where a worker would look for a class in vain."""
        if isinstance(value, (type, FunctionType)) and not is_made_again(value):
            raise pickle.PicklingError(f"an import of the script doesn't make {value.__qualname__}")
        kinds = [(kind.__module__, kind.__name__) for kind in type(value).__mro__]
        holds_numbers = ("numpy", "ndarray") in kinds and not value.dtype.hasobject
        if holds_numbers or (("torch", "Tensor") in kinds and value.is_leaf):
            self._counting.add(value.nbytes)
            return bytes, ()
        return NotImplemented


def _why_unpicklable(given: Arguments) -> str:
    """What a worker is given, as far as it is the script's."""
    for name in GIVEN:
        try:
            _Pickler(_Counting()).dump(given.get(name))
        except OverflowError:
            return f"{NO_FORK}, and those started anew are given a copy of the data: over {MOST_BYTES >> 20} MiB each"
        except Exception as error:  # the user's own classes may raise anything
            said = (str(error).strip().splitlines() or [""])[0][:80]
            return f"{NO_FORK}, and those started anew can't be given its {name}: {type(error).__name__}: {said}"
    return ""
