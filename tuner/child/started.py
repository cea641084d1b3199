"""What may train where no step can be seen: processes that a script starts anew, libraries that nobody watches."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from .patches import patch

_LOADERS = ("torch.utils.data", "torchdata", "grain")
"""Packages whose processes load data."""
_TRAINERS = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed|horovodrun|mpirun|mpiexec|srun|sbatch|\S+\.(py|sh)")
"""Words of a command that tell what trains: Python, launchers, scripts."""
_OTHER_WORDS = """
    : [ [[ activate break case cd continue declare done echo esac exit export false fi for printf read return set shift
    test true ulimit unset wait }
    date df dmesg du free hostname id kill ldconfig locale lsb_release lscpu lshw lspci nproc ps pwd sleep stty
    sysctl tput tty uname which whoami nvidia-smi offload-arch rocm-smi rocminfo
    c++ cc clang clang++ g++ gcc git ld ld.lld ninja nvcc objdump pip pip3 ptxas readelf
    cat cp curl cut ffmpeg ffprobe file grep gunzip gzip head ln ls md5sum mkdir mv rm rmdir rsync scp sed
    sha256sum sort tail tar tee touch tr uniq unzip wc wget xz zip tensorboard wandb-core
"""
_TRAIN_NOTHING = frozenset(_OTHER_WORDS.split())
"""Words of a shell, and programs that tell of the machine, build, copy, fetch and log: of others nobody knows."""
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "ash"))
_LEADING = frozenset(("then", "do", "if", "else", "elif", "while", "until", "!", "{", ".", "source"))
"""Words of a shell behind which a command follows."""
_BETWEEN = re.compile(r"[;|&()]+|[;|&()<>]*\(")
_WITHIN = re.compile(r"\$\(([^()$`]*)|`([^`]*)`")
"""A command whose output is a word, or a part of one."""
_FOUND = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
"""Words of ``find`` behind which a command follows."""
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
_LIBRARIES = {
    "xgboost": "XGBoost", "lightgbm": "LightGBM", "catboost": "CatBoost", "paddle": "PaddlePaddle", "mxnet": "MXNet",
    "mindspore": "MindSpore", "oneflow": "OneFlow", "tinygrad": "tinygrad", "mlx.core": "MLX", "optax": "JAX",
    "flax": "JAX", "equinox": "JAX", "haiku": "JAX",
}  # fmt: skip
"""Libraries that train by themselves, and are imported for nothing else."""
_MOST = 3
SKLEARN = "sklearn.base"
"""The module of scikit-learn in which every fit begins."""
OF_A_FORK = "what a forked process started"


class StartedProcesses:
    """Processes that may train. No forks: they are watched as this process is, and so is what they start in turn.

    A forked process shares one byte of memory with this one: whether it started, or became, what may train.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._pid = os.getpid()
        self._of_forks = mmap.mmap(-1, 1)

    def install(self) -> None:
        """Patches the standard library's ways to start a process."""
        patch(BaseProcess, "start", self._start)
        patch(subprocess.Popen, "__init__", self._popen)
        patch(os, "system", self._system)
        for name in ("posix_spawn", "posix_spawnp"):
            if hasattr(os, name):
                patch(os, name, self._spawn)

    @property
    def may_train(self) -> list[str]:
        """Their names, for people."""
        return [*self._names, *([OF_A_FORK] if self._of_forks[0] else [])]

    def add(self, name: str) -> None:
        """Something has begun that may train, here or in a forked process."""
        if os.getpid() != self._pid:
            self._of_forks[0] = 1
        elif len(self._names) < _MOST and name not in self._names:
            self._names.append(name)

    def _start(self, original: Callable[..., None]) -> Callable[..., None]:
        def start(process: Any) -> None:
            target = getattr(process, "_target", None)  # which a started process forgets
            original(process)
            method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
            if method != "fork" and not str(getattr(target, "__module__", "")).startswith(_LOADERS):
                self.add(f"the process {getattr(target, '__name__', process.name)}")

        return start

    def _popen(self, original: Callable[..., None]) -> Callable[..., None]:
        def popen(process: object, args: object, *others: object, **options: object) -> None:
            original(process, args, *others, **options)
            self.command(args)

        return popen

    def _spawn(self, original: Callable[..., int]) -> Callable[..., int]:
        def spawn(path: object, argv: Iterable[object], *others: object, **options: object) -> int:
            argv = list(argv)
            process = original(path, argv, *others, **options)
            self.command([path, *argv])
            return process

        return spawn

    def _system(self, original: Callable[..., int]) -> Callable[..., int]:
        def system(command: object) -> int:
            self.command(command)
            return original(command)

        return system

    def command(self, command: object) -> None:
        """A command is run, as ``subprocess`` takes it: a text, or its words, which may be a shell's text in turn."""
        trainer = trainer_in(command)
        if trainer:
            self.add(f"the command {trainer}")


def trainer_in(command: object) -> str:
    """The name of what may train in a command as ``subprocess`` takes it, a text or its words; "" for nothing."""
    if isinstance(command, (list, tuple)):
        return _trainer([_text(word) for word in command])
    return next(filter(None, map(_trainer, _simple_commands(_text(command)))), "")


def _text(word: object) -> str:
    """A word of a command as text; "" for what is none, such as an open file."""
    return os.fsdecode(word) if isinstance(word, (str, bytes, os.PathLike)) else ""


def _simple_commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell's text, as words, as far as that is to be told without the shell."""
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.commenters = ""
    command: list[str] = []
    try:
        for word in lexer:
            if _BETWEEN.fullmatch(word):
                yield command
                command = []
            else:
                command.append(word)
    except ValueError:  # a quote that nobody closes
        command = text.split()
    yield command


def _trainer(words: Sequence[str]) -> str:
    words, given = [*words], words
    while words and (words[0] in _LEADING or _ASSIGNMENT.fullmatch(words[0])):
        del words[0]
    program = os.path.basename(words[0]) if words else ""
    if program in _SHELLS and "-c" in words[:-1]:
        return trainer_in(words[words.index("-c") + 1])
    if program == "find":
        return _trainer(words[min((words.index(word) + 1 for word in _FOUND & {*words}), default=len(words)) :])
    if not program or program in _TRAIN_NOTHING:
        within = (match[1] or match[2] or "" for match in _WITHIN.finditer(" ".join(given)))
        return next(filter(None, map(trainer_in, within)), "")
    return next((name for word in words if _TRAINERS.fullmatch(name := os.path.basename(word))), program)


def libraries_that_train() -> list[str]:
    """Those that are imported here. JAX itself is imported by TensorFlow and Keras, whatever these compute with."""
    found = [name for module, name in _LIBRARIES.items() if module in sys.modules]
    if "jax" in sys.modules and sys.modules.keys().isdisjoint(("tensorflow", "keras")):
        found.append("JAX")
    return list(dict.fromkeys(found))
