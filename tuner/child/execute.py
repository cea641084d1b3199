"""Runs the user's script as plain Python would: same ``__main__``, argv, path and traceback.

After coverage.py's ``execfile.py``: a new module named ``__main__`` and ``exec``, not ``runpy.run_path``,
which takes the module away again and so breaks pickling for late threads and spawned workers.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import faulthandler
import importlib.machinery
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from types import CodeType, ModuleType, TracebackType
from typing import Any

from . import arguments, files, hooks, patches, preloaded, preloading, python_files, session, wire
from .rank_clock import RankTurns
from .rank_session import RankSession
from .recorder import Recorder
from .records import ChildRequest, Exit, Hello, ScriptException
from .session import Session, StopTrial
from .temporary import remove_temporary_folders
from .turns import TurnGiver, Turns
from .unison import Unison
from .watch import Watch

UNREADABLE = 70
"""The exit code where the request can't be read (EX_SOFTWARE of sysexits.h); the script hasn't been started then."""
FROM_3_14 = sys.version_info >= (3, 14)
"""Python makes annotations when they are asked for, and takes any kind of KeyboardInterrupt for one."""
_HERE = os.path.dirname(os.path.abspath(__file__))
_OUR_FRAME = re.compile(rf'  File "{re.escape(_HERE)}/[^"]*", line \d+, in [^\n]*\n(?:    [^\n]*\n)?\n?')


def main() -> None:
    """Reads the request, installs the hooks, runs the script, reports how it ended."""
    preloading.keep_to_training()
    request, recorder = _open_request()
    current = _session(request, recorder)
    current.clock.turns = _open_turns(current, recorder)
    session.begin(current)
    recorder.emit(Hello(os.getpid(), sys.version.split()[0], sys.executable))
    _give(install_hooks(current))
    if current.measuring:
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # without a log there is nobody to tell
            faulthandler.register(wire.WHERE_SIGNAL, all_threads=False)
    code = _run(current)
    current.ended_badly = code != 0
    if code == 0 and not current.stopped:
        for listener in current.exit_listeners:
            listener.script_ended()
    current.finish(complete=False)
    if current.applied is not None:
        code = current.applied.ended(code)
    recorder.emit(Exit(code))
    if current.stopped:
        # The window is complete; the script's own exit handlers must not hold the device any longer.
        for listener in current.exit_listeners:
            listener.leaving()
        remove_temporary_folders()
        _flush()
        os._exit(current.exit_code)
    if current.applied is not None and current.applied.interrupted:
        # Python ends by the signal then, as it would without us: a shell's loop goes on after any exit status.
        _tell_nothing_more()
        raise KeyboardInterrupt
    sys.exit(code)


def _tell_nothing_more() -> None:
    """Of what is raised next: the script's own hook has told it, and is what exit handlers find again."""
    own = sys.excepthook

    def says_nothing(*raised: object) -> None:
        sys.excepthook = own

    sys.excepthook = says_nothing


def install_hooks(current: Session) -> list[patches.Stage]:
    """Puts all hooks in place, also those of what a fork server had imported; what others are to be given then."""
    overlay = files.Overlay(current) if current.measuring and current.uses(Watch.FILES) else None
    make_up = hooks.install(current, overlay)
    arguments.install(current)
    if current.applied is not None:
        current.applied.install()
    if overlay is not None:
        python_files.install(overlay)
    return make_up()


def _give(stages: list[patches.Stage]) -> None:
    """To what a fork server had imported, if there is one."""
    state = preloaded.here
    if state is None:
        return
    patches.give_to_others(stages, state.holders)
    if state.holders is not None:
        state.holders.end()


def _session(request: ChildRequest, recorder: Recorder) -> Session:
    """The trial's, or that of one of its ranks."""
    descriptor = os.environ.pop(wire.RANKS_ENV, None)
    if descriptor is None:
        return Session(request, recorder)
    os.set_inheritable(int(descriptor), False)
    rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    return RankSession(request, recorder, Unison(int(descriptor), rank, size))


def _open_request() -> tuple[ChildRequest, Recorder]:
    """The request, and where its answers go. Leaves with ``UNREADABLE`` where it isn't as declared: a fault of ours."""
    path = os.environ.pop(wire.REQUEST_ENV)
    descriptor = os.environ.pop(wire.RECORDS_ENV, None)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        request = wire.decode_request(text)
    except ValueError as error:
        print(f"autotune: a fault of its own: the request of this trial can't be read: {error}", file=sys.stderr)
        sys.exit(UNREADABLE)
    if path.startswith(wire.DESCRIPTORS):
        os.close(int(path.removeprefix(wire.DESCRIPTORS)))
    if request.parent_pid is not None and wire.RANKS_ENV not in os.environ:  # a rank ends with what started it
        die_with(request.parent_pid)
    if descriptor is not None:
        os.set_inheritable(int(descriptor), False)
    return request, Recorder(int(descriptor) if descriptor is not None else None)


def _open_turns(current: Session, recorder: Recorder) -> TurnGiver | None:
    """Where turns come from; None where nothing takes turns with this trial."""
    descriptor = os.environ.pop(wire.TURNS_ENV, None)
    if descriptor is None:
        return None
    os.set_inheritable(int(descriptor), False)
    turns = Turns(recorder, int(descriptor), current.request.window.block_s)
    return RankTurns(turns, current.clock.unison) if isinstance(current, RankSession) else turns


def die_with(parent: int) -> None:
    """Linux: the kernel kills this process when its parent ends, however that happens."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _run(current: Session) -> int:
    try:
        code, namespace = _prepare(current.request)
        _exec(code, namespace)
    except StopTrial:
        return 0
    except SystemExit as stop:
        return _exit_code(stop)
    except BaseException as error:
        if current.stopped:
            return 0
        raised = error
    else:
        return 0
    return _report_exception(current, raised)  # when nothing is handled any more, as the script's own hook may ask


def _exec(code: CodeType, namespace: dict[str, Any]) -> None:
    exec(code, namespace)


def _prepare(request: ChildRequest) -> tuple[CodeType, dict[str, Any]]:
    """The compiled script and the namespace of its ``__main__``."""
    main_module = ModuleType("__main__")
    main_module.__dict__.update(__builtins__=builtins)
    if not FROM_3_14:
        main_module.__dict__.update(__annotations__={})
    sys.modules["__main__"] = main_module
    if request.module:
        code = _prepare_module(request.module, request.argv, main_module)
    else:
        code = _prepare_script(request, main_module)
    sys.orig_argv = [sys.executable, *sys.argv]
    return code, main_module.__dict__


def _prepare_script(request: ChildRequest, main_module: ModuleType) -> CodeType:
    path = os.path.abspath(request.script)
    sys.argv = [request.script_as_given or request.script, *request.argv]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main_module.__file__ = path
    main_module.__loader__ = loader
    main_module.__package__ = None
    main_module.__dict__["__cached__"] = None
    main_module.__spec__ = None
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _prepare_module(name: str, arguments: Sequence[str], main_module: ModuleType) -> CodeType:
    """As ``python -m`` does: the current folder on the path, ``__spec__`` and ``__package__`` of the module."""
    import runpy

    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd())
    sys.argv = ["-m", *arguments]
    details = runpy._get_module_details(name)  # type: ignore[attr-defined]
    spec, code = details[1], details[2]
    sys.argv[0] = spec.origin
    main_module.__file__ = spec.origin
    main_module.__loader__ = spec.loader
    main_module.__package__ = spec.parent
    main_module.__dict__["__cached__"] = spec.cached
    main_module.__spec__ = spec
    assert isinstance(code, CodeType)
    return code


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return 1


def _report_exception(current: Session, error: BaseException) -> int:
    with_ours = _with_our_frames(error)
    chain: list[BaseException] = [error]
    for link in chain:
        link.__traceback__ = _without_our_frames(link.__traceback__)  # excepthook prints the exception's own trace
        _clean_message(link)
        chain += [other for other in (link.__cause__, link.__context__) if other is not None and other not in chain]
    own = error.__traceback__
    text = "".join(traceback.format_exception(type(error), error, own))
    raised = ScriptException(type(error).__name__, str(error)[:2000], text[-20000:], with_ours=with_ours[-20000:])
    current.recorder.emit(raised)
    try:
        sys.excepthook(type(error), error, own)
    except SystemExit as stop:
        return _exit_code(stop)
    except BaseException as failed:  # told as Python tells it, which would call the hook once more
        failed.__traceback__ = _without_our_frames(failed.__traceback__)
        for title, told in (("Error in sys.excepthook:", failed), ("\nOriginal exception was:", error)):
            if sys.stderr is not None:
                print(title, file=sys.stderr)
            sys.__excepthook__(type(told), told, told.__traceback__)
    interrupted = isinstance(error, KeyboardInterrupt) if FROM_3_14 else type(error) is KeyboardInterrupt
    if current.applied is not None:
        current.applied.interrupted = interrupted
    return 130 if interrupted else 1


def _with_our_frames(error: BaseException) -> str:
    """The traceback from the script's first frame on, with the frames of ours that it goes through; "" without any."""
    text = "".join(traceback.format_exception(type(error), error, _next_of_theirs(error.__traceback__)))
    return text if f'  File "{_HERE}{os.sep}' in text else ""


def _clean_message(error: BaseException) -> None:
    """TensorFlow's messages say where an operation was made, through frames of ours."""
    text = getattr(error, "_message", None)
    if isinstance(text, str):
        error._message = _OUR_FRAME.sub("", text)  # type: ignore[attr-defined]


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Takes our frames out, on top and in between: users see exactly the traceback that plain Python prints."""
    trace = _next_of_theirs(trace)
    last = trace
    while last is not None:
        last.tb_next = _next_of_theirs(last.tb_next)
        last = last.tb_next
    return trace


def _next_of_theirs(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE + os.sep):
        trace = trace.tb_next
    return trace


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # the log may lie on a full disk; the records are already with the parent
