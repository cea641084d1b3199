"""Keeps the user's files as they are, and lets everything else be: decides which path is meant by one of the script's.

Only what was there before the trial is protected. A trial that would overwrite, rename or remove such a file gets its
own version of it, in the trial's folder; reading, testing, renaming and removing it act on that version from then on.
What is new is written where the script says, so that whoever reads it finds it, and noted: the parent puts it aside
once the trial has ended.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from . import births
from .created_files import CreatedFiles
from .places import GONE, Places, entry, followed, is_in
from .reflink import copy_by_reference, copy_whole
from .session import Session
from .stale_reads import StaleReads
from .wire import FILES, KEPT

Given = TypeVar("Given")
"""A path as the script gives it, a descriptor, or an open file."""
_MUCH_BYTES = 2**30
_MOST_FOLDERS = 4096


class Overlay:
    """Which path the trial writes to and reads from in place of one that the script names.

    ``diverted``: paths of the user's → the trial's own version. ``removed``: those that the script removed; they are
    there still. In both, the folder of a path is resolved, and the path itself where content is meant. ``is_shared``:
    other processes of the trial have overlays of the same folder, and may have made versions there. ``relinked``: links
    or folders of the user's were replaced, so that paths may lead elsewhere than the kernel says. ``is_elsewhere``: the
    current folder is a version of the trial's.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.folder = os.path.realpath(session.request.folder)
        self.root = os.path.join(self.folder, FILES)
        self.diverted: dict[str, str] = {}
        self.removed = set(session.request.hidden)
        self._kept: set[str] = set()
        # What another rank has made meanwhile isn't the user's.
        self.began = births.now() if session.ranks == 1 else births.at(session.request.spawned_monotonic)
        self.places = Places(session.request)
        self.created = CreatedFiles(
            session.request.folder, self.places.is_watched, lambda: bool(session.clock.total_steps),
            session.facts.remark,
        )  # fmt: skip
        self.stale_reads = StaleReads()
        self._working = threading.local()
        self.relinked = self.is_elsewhere = False
        self.is_shared = session.ranks > 1
        self._stat, self._lstat = os.stat, os.lstat
        self._real_folders: dict[str, str] = {}
        self._below: tuple[str, ...] | None = None
        os.register_at_fork(after_in_parent=self._forked, after_in_child=self._forked)
        session.observers.append(self._tell_of_stale_reads)

    def _forked(self) -> None:
        self.is_shared = True

    # this process's own work

    @property
    def is_working(self) -> bool:
        """Whether this thread is deciding on a path: what it does meanwhile is not the script's doing."""
        return getattr(self._working, "now", False)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Around a decision; see ``is_working``."""
        before = self.is_working
        self._working.now = True
        try:
            yield
        finally:
            self._working.now = before

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """As ``working``, where a link or a folder is made, renamed or removed: paths through it lie elsewhere then."""
        with self.working():
            try:
                yield
            finally:
                self._real_folders.clear()

    @property
    def is_active(self) -> bool:
        """Whether any path may mean something else than it says."""
        return bool(self.diverted or self.removed) or (self.is_shared and self._is_there(self.root))

    # where a path lies

    @staticmethod
    def absolute(path: object) -> str | None:
        """The path as text, or None for descriptors and other things that aren't local paths."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        name = os.fsdecode(path)
        return None if not name or "://" in name or "\0" in name else os.path.abspath(name)

    def real(self, path: str) -> str:
        """The absolute path with its links followed, as the script sees them."""
        return followed(path, self._find) if self.relinked else os.path.realpath(path)

    def entry(self, path: str) -> str:
        """As ``real``, of its folder only."""
        folder, name = os.path.split(path)
        return os.path.join(self.real(folder), name)

    def meant(self, path: Given, *, follow: bool = True) -> Given | str:
        """The path under which the kernel, or ``view``, finds what the script means: mostly what it gives.

        ``follow``: what a link leads to is meant, and not the link.
        """
        if not (self.relinked or self.is_elsewhere) or self.is_working:
            return path
        name = self.absolute(path)
        if name is None or (not self.is_elsewhere and self._is_itself(name)):
            return path
        with self.working():
            seen = self._known_entry(name)
            place = self._find(seen)
            if follow and place != GONE and os.path.islink(seen if place is None else place):
                seen = self.real(seen)
        return path if seen == name and not self.is_elsewhere else seen

    def named(self, place: str) -> str:
        """The script's name for what lies there: the inverse of ``view``."""
        return os.sep + os.path.relpath(place, self.root) if is_in(place, self.root) else place

    def is_users(self, path: str, *, follow: bool = True, everywhere: bool = False) -> bool:
        """Whether a regular file or a folder stands there that is older than the trial.

        ``everywhere``: also in caches. ``follow``: what a link leads to is meant, and not the link.
        """
        if self._is_old(os.path.realpath(path) if follow else entry(path), follow, everywhere):
            return True
        return self.relinked and self._is_old(self.real(path) if follow else self.entry(path), follow, everywhere)

    def _is_old(self, real: str, follow: bool, everywhere: bool) -> bool:
        if not self.places.is_protected(real, everywhere):
            return False
        try:
            status = os.stat(real) if follow else os.lstat(real)
        except OSError:
            return False
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            return False
        if real.endswith(".lock") and not status.st_size and not everywhere:
            return False  # it holds nothing: what matters is that others wait for the same one
        born = births.birth(real, follow=follow)
        if born is None:
            return not self.created.has_made(real) and min(status.st_mtime, status.st_ctime) < self.began
        return born < self.began

    def view(self, path: str, *, follow: bool = True) -> str | None:
        """Where that lies which the script sees at the path; None where it removed it, or a folder above it."""
        found = self._find(self._known_entry(path))
        if found is None and follow and os.path.islink(path):
            found = self._find(self.real(path))
        return path if found is None else None if found == GONE else found

    def _is_itself(self, name: str) -> bool:
        """Whether the path is surely what it says: found out fast, for a loader that reads a file a sample."""
        folder, last = os.path.split(name)
        real = self._real_folders.get(folder)
        if real is None or (self.relinked and real != folder):
            return False
        if self.is_shared and self._is_there(self._target_of(f"{real}{os.sep}{last}")):
            return False
        key = f"{real}{os.sep}{last}"
        if self._below is None:
            self._below = tuple(path + os.sep for path in (*self.diverted, *self.removed))
        if key in self.diverted or key in self.removed or key.startswith(self._below):
            return False
        try:
            return not stat.S_ISLNK(self._lstat(name).st_mode)
        except OSError:
            return True

    def _known_entry(self, path: str) -> str:
        """``entry``, remembered for each folder."""
        folder, name = os.path.split(path)
        real = self._real_folders.get(folder)
        if real is None:
            if len(self._real_folders) > _MOST_FOLDERS:
                self._real_folders.clear()
            real = self._real_folders[folder] = self.real(folder)
        return os.path.join(real, name)

    def _is_there(self, path: str) -> bool:
        try:
            self._stat(path)
        except OSError:
            return False
        return True

    def _is_no_folder(self, path: str) -> bool:
        try:
            return not stat.S_ISDIR(self._lstat(path).st_mode)
        except OSError:
            return False

    def _find(self, name: str) -> str | None:
        """The trial's version, ``GONE``, or None for a path that is what it says."""
        if self.is_shared and self._is_no_folder(target := self._target_of(name)):
            return target  # of this trial's other processes
        below = ""
        while True:
            if name in self.diverted:
                return self.diverted[name] + below
            if name in self.removed:
                return GONE
            name, _, last = name.rpartition(os.sep)
            if not name:
                return None
            below = os.sep + last + below

    def _target_of(self, name: str) -> str:
        return os.path.join(self.root, name.lstrip(os.sep))

    def target(self, path: str, *, follow: bool = True) -> str:
        """Where the trial's version of the path lies from now on; the folder for it is made."""
        name = self.real(path) if follow else self.entry(path)
        if name not in self.diverted:
            target = self._target_of(name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.isfile(name):
                self.stale_reads.watch(name)
            self.diverted[name] = target
            self._below = None
            self.keeps(name, f"diverted {path} to the trial's folder")
        return self.diverted[name]

    def keeps(self, name: str, text: str) -> None:
        """The script would have changed the path of the user's. It is written down before anything else is done."""
        if name not in self._kept:
            self._kept.add(name)
            with contextlib.suppress(OSError), open(os.path.join(self.folder, KEPT), "a", encoding="utf-8") as file:
                file.write(json.dumps(name) + "\n")
        self.note(text)

    def note(self, text: str) -> None:
        """A line for people, of the trial's own process only."""
        if self.session.here:
            self.session.note(text)

    # what the script does with it

    def for_writing(
        self,
        path: Given,
        *,
        keep_content: bool = False,
        exclusive: bool = False,
        everywhere: bool = False,
        copy: Callable[[str, str], None] | None = None,
    ) -> Given | str:
        """The path to write a file to instead; the path itself where nothing of the user's is in danger.

        ``keep_content``: what is there stays, and is copied first, by ``copy`` where that is given (source, target).
        ``exclusive``: fails where something is there.
        Raises ``FileNotFoundError`` in a folder that the script removed.
        """
        meant = self.meant(path, follow=not exclusive)
        name = self.absolute(meant)
        if name is None or self.is_working:
            return path
        with self.working():
            place = self.view(name) if self.is_active else name
            if place is None:
                return self._write_where_removed(name)
            if place != name:
                self.stale_reads.is_written(self.real(name))
                return place
            if exclusive or os.path.isdir(name) or not self.is_users(name, everywhere=everywhere):
                return meant
            if not os.access(name, os.W_OK):
                return meant  # fails, as it would without us
            if keep_content:
                self.copy(name, copy or copy_by_reference)
            return self.target(name)

    def _write_where_removed(self, name: str) -> str:
        key = self.entry(name)
        if key not in self.removed and self.real(name) not in self.removed:
            raise missing(name)
        return self.target(name, follow=key not in self.removed)

    def for_reading(self, path: Given, *, follow: bool = True) -> Given | str:
        """The trial's version of the path, if it has one. Raises ``FileNotFoundError`` where the script removed it."""
        if self.is_working or not self.is_active:
            return path
        meant = self.meant(path, follow=follow)
        name = self.absolute(meant)
        if name is None or self._is_itself(name):
            return meant
        with self.working():
            place = self.view(name, follow=follow)
        if place is None:
            raise missing(path)
        return meant if place == name else place

    def will_make(self, path: object, *, folder: bool = False, model: bool = False) -> None:
        """The script is about to write to the path, which ``for_writing`` gave."""
        if not self.is_working:
            with self.working():
                self.created.will_make(self.absolute(path), folder=folder, model=model)

    def saving(
        self, path: Given, *, model: bool = True, keep_content: bool = False, exclusive: bool = False
    ) -> Given | str:
        """For libraries that write a file past ``open``: the path to write to, noted. See ``for_writing``."""
        place = self.for_writing(path, keep_content=keep_content, exclusive=exclusive, everywhere=model)
        self.will_make(place, model=model)
        return place

    def loading(self, path: Given) -> Given | str:
        """For libraries that read a file past ``open``."""
        place = self.for_reading(path)
        if self.created.has_any and not self.is_working and (name := self.absolute(place)) is not None:
            with self.working():
                self.created.read(self._known_entry(name))
        return place

    def listed(self, folder: str, names: Iterable[str]) -> list[str]:
        """Those of a folder's names that the script hasn't removed, or has made anew."""
        real = self.real(folder)
        keys = ((name, os.path.join(real, os.fsdecode(name))) for name in names)
        return [name for name, key in keys if key not in self.removed or os.path.lexists(self.diverted.get(key, ""))]

    def remove(self, path: str) -> None:
        """The script sees nothing at the path of the user's from now on."""
        name = self.entry(path)
        if os.path.islink(name) or os.path.isdir(name):
            self.relinks()
        self.removed = {key for key in self.removed if not is_in(key, name)} | {name}
        self._below = None
        # What the trial had made of it, or in it, is gone indeed.
        for below in [key for key in list(self.diverted) if is_in(key, name)]:
            del self.diverted[below]
        target = self._target_of(name)
        with contextlib.suppress(OSError):
            shutil.rmtree(target) if os.path.isdir(target) else os.unlink(target)
        self.keeps(name, f"kept {path}, which the script would remove")

    def relinks(self) -> None:
        """A link or a folder takes a place of the user's, or leaves it: see ``relinked``."""
        self.relinked = True
        self._real_folders.clear()

    def forget(self, path: str) -> None:
        """The trial's version of the path was renamed or removed: nothing is there, though the user's may be."""
        name = self.entry(path)
        if self.diverted.pop(name, None) is not None and os.path.lexists(path):
            self.removed.add(name)
        self._below = None

    def make_folders(self, path: str) -> None:
        """A library is about to make the folder, and those above it, past Python: what is missing of them is noted."""
        missing = []
        while not os.path.lexists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            self.created.will_make(folder, folder=True)

    def copy(self, source: str, copy: Callable[[str, str], None]) -> None:
        """Makes the trial's version of the file, with a word to the user where it is a large one."""
        target = self._target_of(os.path.realpath(source))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        size = os.path.getsize(source)
        if size > _MUCH_BYTES:
            self.note(f"copied {source} ({size / 2**30:.1f} GiB) to the trial's folder: it is opened for writing")
        copy_whole(source, target, copy)

    def _tell_of_stale_reads(self) -> None:
        for path in self.stale_reads.seen():
            self.session.facts.remark(
                f"{path} was there before, was written anew in the trial, and was then opened past Python, where only "
                "its old version is found; have the script write to a new file"
            )


def missing(path: object) -> FileNotFoundError:
    """What is raised where nothing is at the path."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
