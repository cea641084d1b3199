"""Processes that a script starts and that may train there, where no step can be seen: nothing of ours is in them."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from .patches import patch

_LOADERS = ("torch.utils.data", "torchdata")
"""Packages whose processes load data."""
_TRAINERS = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed|horovodrun|mpirun|mpiexec|srun|sbatch|\S+\.(py|sh)")
"""Words of a command that may train: Python, launchers, scripts."""
_MOST = 3


class StartedProcesses:
    """``may_train``: names of processes that may train. No forks: they are watched as this process is."""

    def __init__(self) -> None:
        self.may_train: list[str] = []

    def install(self) -> None:
        """Patches the standard library's ways to start a process."""
        patch(BaseProcess, "start", self._start)
        patch(subprocess.Popen, "__init__", self._popen)
        patch(os, "system", self._system)

    def _add(self, name: str) -> None:
        if len(self.may_train) < _MOST and name not in self.may_train:
            self.may_train.append(name)

    def _start(self, original: Callable[..., None]) -> Callable[..., None]:
        def start(process: Any) -> None:
            target = getattr(process, "_target", None)  # which a started process forgets
            original(process)
            method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
            if method != "fork" and not str(getattr(target, "__module__", "")).startswith(_LOADERS):
                self._add(f"the process {getattr(target, '__name__', process.name)}")

        return start

    def _popen(self, original: Callable[..., None]) -> Callable[..., None]:
        def popen(process: object, args: object, *others: object, **options: object) -> None:
            original(process, args, *others, **options)
            self._command(args)

        return popen

    def _system(self, original: Callable[..., int]) -> Callable[..., int]:
        def system(command: object) -> int:
            self._command(command)
            return original(command)

        return system

    def _command(self, command: object) -> None:
        """A command as ``subprocess`` takes it: a text, or its words."""
        words = command.split() if isinstance(command, str) else command
        if not isinstance(words, (list, tuple)):
            words = [words]
        for word in words:
            name = os.path.basename(os.fsdecode(word)) if isinstance(word, (str, bytes, os.PathLike)) else ""
            if _TRAINERS.fullmatch(name):
                self._add(f"the command {name}")
                return
