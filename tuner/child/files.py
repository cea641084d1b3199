"""Keeps the user's files as they are: what a trial would overwrite, remove or save is diverted to its own folder.

A diverted path is known from then on: reading, testing, renaming and removing it act on the trial's copy, so
that a script which saves a checkpoint and loads it again notices nothing.
"""

from __future__ import annotations

import builtins
import inspect
import io
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from .created_files import CreatedFiles
from .patches import patch
from .records import ChildRequest
from .session import Session
from .wire import FILES

Result = TypeVar("Result")
"""What a patched function gives back unchanged."""
Given = TypeVar("Given")
"""A path as the script gives it, a descriptor, or an open file."""
CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors", ".tar", ".bin", ".keras", ".h5", ".weights")


class Overlay:
    """Which path the trial writes to and reads from in place of one that the script names.

    Paths are as the script gives them; ``diverted`` holds those of the user's that the trial has its own version of,
    below the trial's folder. In other processes than the trial's own nothing is diverted.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.root = os.path.join(session.request.folder, FILES)
        self.diverted: dict[str, str] = {}
        # A file that is older than the trial is the user's; one that the trial made is the trial's.
        self.began = time.time()
        folder = session.request.folder
        caches = (os.path.expanduser("~/.cache"), tempfile.gettempdir(), folder, "/dev", "/proc", "/sys")
        self.exempt = tuple(os.path.realpath(path) + os.sep for path in caches if path)
        self.named = tuple(path for path in _folders_of(session.request) if path + os.sep not in self.exempt)
        self.caches = tuple(os.path.realpath(path) + os.sep for path in _caches())
        self.home = os.path.realpath(os.path.expanduser("~"))
        self.stat = os.stat
        self.open = builtins.open
        self.created = CreatedFiles(session.request.folder, self.is_watched, lambda: bool(session.clock.total_steps))

    def absolute(self, path: object) -> str | None:
        """The path as text, or None for descriptors and other things that aren't paths."""
        if isinstance(path, (str, os.PathLike)):
            name = os.fspath(path)
            return os.path.abspath(name) if isinstance(name, str) else None
        return None

    def is_users(self, path: str) -> bool:
        """Whether a regular file (or folder) stands there that the trial didn't make."""
        real = os.path.realpath(path)
        if not self._is_among_users(real):
            return False
        try:
            status = self.stat(real)
        except OSError:
            return False
        ordinary = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        return ordinary and status.st_mtime < self.began

    def _is_among_users(self, real: str) -> bool:
        """Whether the path lies where trials may not write what they like."""
        return not real.startswith(self.exempt) or self._under_user_folder(real)

    def is_watched(self, path: str) -> bool:
        """Whether what is made there comes from the script. Libraries keep downloads elsewhere in the home folder."""
        real = os.path.realpath(path)
        # The folder itself, too: whatever lies in one that the trial made goes with it.
        cached = (real + os.sep).startswith(self.caches) or f"{os.sep}__pycache__" in real
        if cached or not (self.session.here and self._is_among_users(real)):
            return False
        in_home = os.path.relpath(real, self.home) if real.startswith(self.home + os.sep) else ""
        return not in_home or (self._under_user_folder(real) and not in_home.startswith("."))

    def _under_user_folder(self, real: str) -> bool:
        """A project that lies in the temporary folder is still the user's; only the trial's own folder isn't."""
        homes = (os.path.realpath(os.getcwd()), *self.named)
        users = any(real == home or real.startswith(home + os.sep) for home in homes)
        return users and not real.startswith(os.path.realpath(self.session.request.folder) + os.sep)

    def target(self, path: str) -> str:
        """Where the trial's version of the path lies from now on."""
        if path not in self.diverted:
            target = os.path.join(self.root, path.lstrip(os.sep))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            self.diverted[path] = target
            self.session.note(f"diverted {path} to the trial's folder")
        return self.diverted[path]

    def for_writing(self, path: Given, *, always: bool = False, keep_content: bool = False) -> Given | str:
        """The path to write to instead; the path itself where nothing of the user's is in danger."""
        name = self.absolute(path)
        if name is None or not self.session.here:
            return path
        if name in self.diverted:
            return self.diverted[name]
        if os.path.realpath(name).startswith(os.path.realpath(self.session.request.folder) + os.sep):
            return path
        users = self.is_users(name)
        if not (users or always):
            return path
        content = self._content(name) if users and keep_content else None
        target = self.target(name)
        if content is not None:
            with self.open(target, "wb") as file:
                file.write(content)
        return target

    def _content(self, path: str) -> bytes:
        with self.open(path, "rb") as file:
            content: bytes = file.read()
            return content

    def for_reading(self, path: Given) -> Given | str:
        """The trial's version of the path, if it has one."""
        if not self.diverted:
            return path
        name = self.absolute(path)
        return path if name is None else self.diverted.get(name, path)


def _caches() -> Iterator[str]:
    """What the environment names as one, such as the study's own for what is compiled."""
    for name, value in os.environ.items():
        if os.path.isabs(value) and ("CACHE" in name or name in ("HF_HOME", "TORCH_HOME", "KERAS_HOME")):
            yield value


def _folders_of(request: ChildRequest) -> Iterator[str]:
    """Where the script lies, and every path that its arguments name."""
    if request.script:
        yield os.path.dirname(os.path.realpath(request.script))
    for argument in request.argv:
        value = argument.rpartition("=")[2]
        if os.sep in value:
            yield os.path.realpath(value)


def install(overlay: Overlay) -> None:
    """Patches the ways in which Python scripts write, rename and remove files."""
    patch(builtins, "open", lambda original: _open(overlay, original))
    io.open = builtins.open
    for name in ("replace", "rename"):
        patch(os, name, lambda original: _rename(overlay, original))
    for name in ("remove", "unlink"):
        patch(os, name, lambda original: _remove(overlay, original))
    patch(os, "mkdir", lambda original: _mkdir(overlay, original))
    patch(os, "stat", lambda original: reading_first(overlay, original))
    patch(shutil, "rmtree", lambda original: _rmtree(overlay, original))


def _open(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def open(file: object, mode: object = "r", *args: object, **kwargs: object) -> Result:
        if isinstance(mode, str) and any(letter in mode for letter in "wax+"):
            checkpoint = isinstance(file, (str, os.PathLike)) and str(file).endswith(CHECKPOINTS)
            keeps = "w" not in mode
            file = overlay.for_writing(file, always=checkpoint and "w" in mode, keep_content=keeps)
            overlay.created.will_make(overlay.absolute(file))
        else:
            file = overlay.for_reading(file)
            overlay.created.read(file)
        return original(file, mode, *args, **kwargs)

    return open


def reading_first(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    """``original``, which reads the path that is its first argument, given the trial's version of it."""

    def call(*args: object, **kwargs: object) -> Result:
        if overlay.diverted:
            args, kwargs = _with_path(original, 0, overlay.for_reading, args, kwargs)
        return original(*args, **kwargs)

    return call


def writing_second(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    """``original``, which saves to the path that is its second argument, given one in the trial's folder."""

    def call(*args: object, **kwargs: object) -> Result:
        args, kwargs = _with_path(original, 1, lambda path: overlay.for_writing(path, always=True), args, kwargs)
        return original(*args, **kwargs)

    return call


def _with_path(
    function: Callable[..., object],
    place: int,
    change: Callable[[object], object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of a call, one of them changed: it may be given by its place, or by the function's name for it."""
    if len(args) > place:
        return (*args[:place], change(args[place]), *args[place + 1 :]), kwargs
    name = list(inspect.signature(function).parameters)[place]
    return args, {**kwargs, name: change(kwargs[name])} if name in kwargs else kwargs


def _rename(overlay: Overlay, original: Callable[..., object]) -> Callable[..., object]:
    def rename(src: object, dst: object, *args: object, **kwargs: object) -> object:
        source, destination = overlay.absolute(src), overlay.absolute(dst)
        if source is None or destination is None or not overlay.session.here:
            return original(src, dst, *args, **kwargs)
        if source in overlay.diverted:
            return original(overlay.diverted.pop(source), overlay.target(destination))
        if overlay.is_users(source) or overlay.is_users(destination):
            # The user's own file is copied, not moved: both names stay as they were.
            target = overlay.target(destination)
            if overlay.is_users(source):
                shutil.copy2(source, target)
                return None
            return shutil.move(source, target)
        overlay.created.will_make(destination, folder=os.path.isdir(source))
        return original(src, dst, *args, **kwargs)

    return rename


def _mkdir(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def mkdir(path: object, *args: object, **kwargs: object) -> Result:
        overlay.created.will_make(None if kwargs.get("dir_fd") is not None else overlay.absolute(path), folder=True)
        return original(path, *args, **kwargs)

    return mkdir


def _remove(overlay: Overlay, original: Callable[..., object]) -> Callable[..., object]:
    def remove(path: object, *args: object, **kwargs: object) -> object:
        name = overlay.absolute(path)
        if name is None or kwargs or not overlay.session.here:
            return original(path, *args, **kwargs)
        if name in overlay.diverted:
            return original(overlay.diverted.pop(name))
        if overlay.is_users(name):
            overlay.session.note(f"kept {name}, which the script would remove")
            return None
        return original(path, *args)

    return remove


def _rmtree(overlay: Overlay, original: Callable[..., object]) -> Callable[..., object]:
    def rmtree(path: object, *args: object, **kwargs: object) -> object:
        name = overlay.absolute(path)
        if name is not None and overlay.session.here and overlay.is_users(name):
            overlay.session.note(f"kept {name}, which the script would remove")
            return None
        return original(path, *args, **kwargs)

    return rmtree
