"""Processes that the script starts to train in: their steps can't be seen from here, and a study has to be told why."""

from __future__ import annotations

import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import util
from multiprocessing.process import BaseProcess, current_process
from types import ModuleType

from ..patches import patch
from ..records import ProcessesAwaited
from ..session import ExitListener, Session
from .types import Process, ProcessContext, Result


class ProcessWatch(ExitListener):
    """Recognises that the script waits for trainers of its own, so that nobody waits for a step that can't come."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self.session = session
        self.torch = torch
        self.trainers: weakref.WeakSet[Process] = weakref.WeakSet()
        self.started: list[str] = []
        self.names: weakref.WeakKeyDictionary[Process, str] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Patches the start of a process and the waiting for its end."""
        self.session.exit_listeners.append(self)
        patch(BaseProcess, "start", self._start)
        patch(BaseProcess, "join", self._join)
        spawning = sys.modules.get("torch.multiprocessing.spawn")
        if spawning is not None:
            patch(spawning.ProcessContext, "join", self._join_spawned)

    def _start(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def start(process: Process) -> Result:
            if self.session.here and not process.daemon:  # a DataLoader's workers are daemons
                arguments = [*process._args, *process._kwargs.values()]
                if any(self._is_trainable(argument) for argument in arguments):
                    self.trainers.add(process)
                self.names[process] = _name_of(process)  # a process that has started knows its function no more
                self.started.append(self.names[process])
            if self.session.here:
                # Each worker would make a folder of its own for sockets, and leave it behind when the trial ends.
                process._config.setdefault("tempdir", util.get_temp_dir())
            return original(process)

        return start

    def leaving(self) -> None:
        """Removes the folder for sockets, which an exit handler would."""
        folder = current_process()._config.get("tempdir")  # type: ignore[attr-defined]
        if folder:
            shutil.rmtree(folder, ignore_errors=True)

    def _is_trainable(self, value: object) -> bool:
        return isinstance(value, self.torch.nn.Module) and any(p.requires_grad for p in value.parameters())

    def _join(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def join(process: Process, timeout: float | None = None) -> Result:
            name = self.names.get(process)
            if timeout is not None or name is None or not self._sees_no_step():
                return original(process, timeout)
            if process in self.trainers:
                self._waits_for([process])
            if threading.current_thread() is not threading.main_thread():  # the script does something else meanwhile
                return original(process, timeout)
            self.session.recorder.emit(ProcessesAwaited(name))
            result = original(process, timeout)
            if self._sees_no_step():
                self.session.recorder.emit(ProcessesAwaited(""))
            return result

        return join

    def _join_spawned(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def join(context: ProcessContext, *args: object, **kwargs: object) -> Result:
            self._waits_for(context.processes)
            return original(context, *args, **kwargs)

        return join

    def _sees_no_step(self) -> bool:
        return self.session.here and self.session.measuring and not self.session.clock.total_steps

    def _waits_for(self, processes: Sequence[Process]) -> None:
        """The script does nothing from here on but wait for its trainers: so would the trial."""
        if not self._sees_no_step():
            return
        for process in {*processes, *self.trainers}:
            process.kill()
        self.session.fail("own-processes", self._reason())
        self.session.stop("the script trains in processes of its own", complete=False)

    def script_ended(self) -> None:
        """Says why no step could be seen, where the script trained in processes of its own."""
        if self.started and not self.session.clock.total_steps:
            self.session.fail("own-processes", self._reason())

    def _reason(self) -> str:
        names = ", ".join(sorted(set(self.started)))
        return f"the script trains in processes that it starts itself ({names}): only its first process can be measured"


def _name_of(process: Process) -> str:
    """Of the function that it runs: that of the script's own, which ``torch.multiprocessing.spawn`` wraps."""
    target: object = process._target
    if getattr(target, "__module__", "") == "torch.multiprocessing.spawn":
        target = next(iter(process._args), target)
    return getattr(target, "__name__", type(process).__name__)
