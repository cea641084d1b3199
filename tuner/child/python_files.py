"""Python's own calls on files, led to where the overlay says: ``open``, ``os`` and ``shutil``.

A call fails as it would without us: with the same error where the file is there already, or isn't, or isn't anymore.
"""

from __future__ import annotations

import _io
import builtins
import errno
import functools
import inspect
import io
import os
import shutil
import subprocess
import sys
from abc import ABCMeta
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import BuiltinFunctionType, ModuleType
from typing import Any, TypeVar

from . import folders, preloaded, renames
from .files import Overlay, missing
from .holders import everywhere
from .patches import patch, put, replace_name, replace_static
from .places import of_descriptor
from .whole_paths import whole_paths

Result = TypeVar("Result")
"""What a patched function gives back unchanged."""
Make = Callable[[Overlay, Callable[..., Any]], Callable[..., object]]
"""Wraps a function of ``os``, each of which gives something else."""
_CWD = 10
"""The place of ``cwd`` among the arguments of ``subprocess.Popen``, the object included."""
MOST_COPIED_BYTES = 2**24
"""Files of the user's whose permissions or times a script sets are copied up to so many in all, by each such function:
one that touches all that it reads would fill the trial's folder.
"""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND | os.O_CREAT


def install(overlay: Overlay) -> None:
    """Patches the ways in which Python scripts write, rename, remove and look for files."""
    original = builtins.open
    taken: dict[object, Callable[..., object]] = {original: _patched_open(overlay)}
    put(io, "FileIO", _file_io(overlay, io.FileIO))  # and not that of _io, by which Python imports
    remove, rmdir = _removing(_is_file), _removing(_is_empty_folder)
    patches: dict[str, Make] = {
        "open": _os_open, "replace": renames.rename, "rename": renames.rename, "link": renames.link,
        "symlink": renames.symlink, "remove": remove, "unlink": remove, "rmdir": rmdir, "mkdir": _mkdir,
        "mkfifo": _mkfifo, "mknod": _mkfifo,
        "truncate": _truncate, "chmod": _on_own, "fchmod": _on_own, "chown": _on_own, "fchown": _on_own,
        "lchown": functools.partial(_on_own, follow=False), "utime": _on_own, "setxattr": _on_own,
        "removexattr": _on_own, "getxattr": _told, "listxattr": _told, "statvfs": _told,
        "stat": _told, "lstat": _of_itself, "readlink": _of_itself, "access": _access,
        "listdir": folders.listdir, "scandir": folders.scandir, "chdir": folders.chdir, "fchdir": folders.chdir,
        "getcwd": folders.getcwd, "getcwdb": folders.getcwdb,
    }  # fmt: skip
    for name, make in patches.items():
        function = getattr(os, name)
        taken[function] = _patched_of_os(overlay, name, make)
    patch(shutil, "rmtree", lambda original: whole_paths(overlay, "rmtree", original, _rmtree(overlay, original)))
    # Another program begins in the folder that is meant.
    patch(subprocess.Popen, "__init__", lambda original: led(original, _CWD, overlay.for_reading))
    _patch_what_was_taken(taken)


def _patched_open(overlay: Overlay) -> Callable[..., object]:
    patch(builtins, "open", lambda original: _open(overlay, original))
    for module in (io, _io):
        patch(module, "open", lambda _: builtins.open)
    return builtins.open


def _patch_what_was_taken(taken: Mapping[object, Callable[..., object]]) -> None:
    """Modules that were imported before may have taken a function under a name of their own, as ``bz2`` has ``open``.

    ``taken``: an original → what replaces it.
    """
    holders = preloaded.here.holders if preloaded.here is not None else None
    scope = holders.scope(taken) if holders is not None else everywhere()
    for name, module in scope.modules:
        # Others than plain modules may import or warn where they are asked for anything.
        if type(module) is not ModuleType or name == "posix":
            continue
        for attribute, value in list(vars(module).items()):
            if type(value) is BuiltinFunctionType and (replacement := taken.get(value)) is not None:
                replace_name(module, attribute, replacement)
    _patch_globbers(taken)


def _patch_globbers(taken: Mapping[object, Callable[..., object]]) -> None:
    """From Python 3.13 on ``Path.glob`` calls what a class of ``glob`` took of ``os`` when it was made."""
    for kind in [value for value in vars(sys.modules.get("glob", object)).values() if isinstance(value, type)]:
        for name, value in list(vars(kind).items()):
            replacement = taken.get(value.__func__) if type(value) is staticmethod else None
            if replacement is not None:
                replace_static(kind, name, replacement)


def _patched_of_os(overlay: Overlay, name: str, make: Make) -> Callable[..., object]:
    """What ``os`` says of a function's abilities holds for what replaces it."""
    original = getattr(os, name)
    patch(os, name, lambda function: whole_paths(overlay, name, function, make(overlay, function)))
    for abilities in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in abilities:
            abilities.add(getattr(os, name))
    replacement: Callable[..., object] = getattr(os, name)
    return replacement


def _open(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def open(file: object, mode: object = "r", *args: object, **kwargs: object) -> Result:
        opener = args[5] if len(args) > 5 else kwargs.get("opener")
        place = _opened(overlay, file, mode, opener)
        opened = original(place, mode, *args, **kwargs)
        if place is not file:
            buffer = getattr(opened, "buffer", opened)
            _named(getattr(buffer, "raw", buffer), file)
        return opened

    return open


def _named(raw: object, file: object) -> None:
    """An open file says the name that the script gave."""
    if isinstance(file, (str, bytes, os.PathLike)):
        with suppress(AttributeError):
            raw.name = os.fspath(file)  # type: ignore[attr-defined]  # of io.FileIO


def _opened(overlay: Overlay, file: object, mode: object, opener: object) -> object:
    """What to open in place of ``file``. An opener calls ``os.open``, and alone knows what its path is below of."""
    if overlay.is_working or not isinstance(mode, str) or opener is not None:
        return file
    if not any(letter in mode for letter in "wax+"):
        return overlay.loading(file)
    keeps, exclusive = "a" in mode or "r" in mode, "x" in mode
    file = overlay.for_writing(file, keep_content=keeps, exclusive=exclusive)
    overlay.will_make(file, model=is_model_name(file))
    return file


class _FileKind(ABCMeta):
    """Of the class that takes the place of ``io.FileIO``: what ``open`` gives counts as its instance, as before."""

    original: type

    def __instancecheck__(cls, instance: object) -> bool:
        is_led = "original" in vars(cls)
        return isinstance(instance, cls.original) if is_led else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        is_led = "original" in vars(cls)
        return issubclass(subclass, cls.original) if is_led else super().__subclasscheck__(subclass)


def _file_io(overlay: Overlay, replaced: type[io.FileIO]) -> type:
    """A class, since libraries inherit from it. What ``open`` makes of it by itself is led already."""

    class FileIO(replaced, metaclass=_FileKind):  # type: ignore[misc, valid-type]  # a base that is found at run time
        original = replaced
        __doc__ = replaced.__doc__

        def __init__(self, file: object, mode: object = "r", closefd: bool = True, opener: object = None) -> None:
            place = _opened(overlay, file, mode, opener)
            super().__init__(place, mode, closefd, opener)
            if place is not file:
                _named(self, file)

    FileIO.__module__, FileIO.__qualname__ = replaced.__module__, replaced.__qualname__
    return FileIO


def is_model_name(file: object) -> bool:
    """Whether the name is one that only models have; others may be prepared data."""
    name = os.fspath(file) if isinstance(file, (str, os.PathLike)) else ""
    return isinstance(name, str) and name.endswith((".keras", ".weights.h5", ".safetensors", ".ckpt", ".pth"))


def _os_open(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def open(path: object, flags: int, *args: object, **kwargs: object) -> Result:
        if flags & os.O_DIRECTORY:
            return original(overlay.for_reading(path), flags, *args, **kwargs)
        if not flags & _WRITING:
            return original(overlay.loading(path), flags, *args, **kwargs)
        exclusive = bool(flags & os.O_EXCL and flags & os.O_CREAT)
        anew = bool(flags & os.O_TRUNC and flags & os.O_CREAT)
        path = overlay.for_writing(path, keep_content=not anew, exclusive=exclusive)
        if flags & os.O_CREAT:
            overlay.will_make(path, model=is_model_name(path))
        return original(path, flags, *args, **kwargs)

    return open


def with_path(
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


def led(original: Callable[..., Result], place: int, change: Callable[[object], object]) -> Callable[..., Result]:
    """``original``, its argument of that number changed, as ``with_path`` does it."""

    def call(*args: object, **kwargs: object) -> Result:
        args, kwargs = with_path(original, place, change, args, kwargs)
        return original(*args, **kwargs)

    return call


def _told(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    """Of what a link leads to, unless the script asks for the link."""

    def call(path: object, *args: object, **kwargs: object) -> Result:
        follow = bool(kwargs.get("follow_symlinks", True))
        return original(overlay.for_reading(path, follow=follow), *args, **kwargs)

    return call


def _of_itself(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    """Of a link, and not of what it leads to."""

    def call(path: object, *args: object, **kwargs: object) -> Result:
        return original(overlay.for_reading(path, follow=False), *args, **kwargs)

    return call


def _access(overlay: Overlay, original: Callable[..., object]) -> Callable[..., object]:
    def access(path: object, mode: int, *args: object, **kwargs: object) -> object:
        try:
            path = overlay.for_reading(path)
        except FileNotFoundError:
            return False
        return original(path, mode, *args, **kwargs)

    return access


def _truncate(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def truncate(path: object, length: int) -> Result:
        return original(overlay.for_writing(path, keep_content=True), length)

    return truncate


def _copy_with_all(source: str, target: str) -> None:
    """With its permissions, times and attributes."""
    shutil.copy2(source, target)


def _on_own(
    overlay: Overlay, original: Callable[..., Result], follow: bool = True
) -> Callable[..., Result | None]:
    """Permissions, owners and times of the trial's own files; those of the user's stay.

    The script sees what it set of a small file of theirs: of a version of the trial's.
    """
    copied_bytes = 0

    def has_own_version(name: str, path: object, follow: bool) -> bool:
        nonlocal copied_bytes
        if isinstance(path, int) or not os.path.isfile(name) or not (follow or not os.path.islink(name)):
            return False
        size = os.path.getsize(name)
        if copied_bytes + size > MOST_COPIED_BYTES or not os.access(name, os.R_OK):
            return False
        copied_bytes += size
        overlay.copy(name, _copy_with_all)
        overlay.stale_reads.is_alike(overlay.real(name))
        return True

    def call(path: object, *args: object, **kwargs: object) -> Result | None:
        name = of_descriptor(path) if isinstance(path, int) else overlay.absolute(path)
        if name is None:
            return original(path, *args, **kwargs)
        follows = follow and bool(kwargs.get("follow_symlinks", True))
        with overlay.working():
            place = overlay.view(name, follow=follows)
            if place == name and overlay.is_users(name, follow=follows):
                if not has_own_version(name, path, follows):
                    overlay.keeps(os.path.realpath(name), f"left the permissions and times of {name} as they were")
                    return None
                place = overlay.target(name)
        if place is None and not isinstance(path, int):
            raise missing(path)
        return original(path if place == name or isinstance(path, int) else place, *args, **kwargs)

    return call


def _mkdir(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def mkdir(path: object, *args: object, **kwargs: object) -> Result:
        name = overlay.absolute(path)
        if name is None:
            return original(path, *args, **kwargs)
        with overlay.changing():
            place = overlay.view(name, follow=False)
            if place is None:
                if overlay.view(os.path.dirname(name)) is None:
                    raise missing(path)
                # A folder of the user's that the script removed: a new one takes its place.
                return original(overlay.target(name, follow=False), *args, **kwargs)
            overlay.created.will_make(place, folder=True)
        return original(path if place == name else place, *args, **kwargs)

    return mkdir


def _mkfifo(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def mkfifo(path: object, *args: object, **kwargs: object) -> Result:
        name = overlay.absolute(path)
        if name is None:
            return original(path, *args, **kwargs)
        with overlay.working():
            place = overlay.view(name, follow=False)
            if place is None:
                if overlay.view(os.path.dirname(name)) is None:
                    raise missing(path)
                place = overlay.target(name, follow=False)
            overlay.created.will_make(place)
        return original(path if place == name else place, *args, **kwargs)

    return mkfifo


def _removing(is_its: Callable[[Overlay, str, object], bool]) -> Make:
    """What removes one file or folder: of the user's only where ``is_its``, and without touching it."""

    def make(overlay: Overlay, original: Callable[..., object]) -> Callable[..., object]:
        def remove(path: object, *args: object, **kwargs: object) -> object:
            name = overlay.absolute(path)
            if name is None:
                return original(path, *args, **kwargs)
            with overlay.changing():
                place = overlay.view(name, follow=False)
                if place is None:
                    raise missing(path)
                if place == name and overlay.is_users(name, follow=False) and is_its(overlay, name, path):
                    overlay.remove(name)
                    return None
                done = original(path if place == name else place, *args)
                overlay.forget(name)
                return done

        return remove

    return make


def _is_file(overlay: Overlay, name: str, path: object) -> bool:
    return os.path.islink(name) or not os.path.isdir(name)


def _is_empty_folder(overlay: Overlay, name: str, path: object) -> bool:
    """Raises OSError, as ``os.rmdir`` does, where the script sees something in it."""
    if not os.path.isdir(name):
        return False
    if overlay.listed(name, os.listdir(name)):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
    return True


def _rmtree(overlay: Overlay, original: Callable[..., object]) -> Callable[..., object]:
    def rmtree(path: object, *args: object, **kwargs: object) -> object:
        name = overlay.absolute(path)
        if name is None or os.path.islink(name):
            return original(path, *args, **kwargs)
        with overlay.changing():
            place = overlay.view(name, follow=False)
            if place == name and overlay.is_users(name, follow=False) and os.path.isdir(name):
                overlay.remove(name)
                return None
            if place is not None:
                done = original(path if place == name else place, *args, **kwargs)
                overlay.forget(name)
                return done
        return original(path, *args, **kwargs)  # not there: it finds out, and tells whom it is to tell

    return rmtree
