"""Databases of SQLite and LMDB, which are opened for writing and mostly read."""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from ..files import Overlay
from ..folders import place_for
from ..patches import patch
from .calls import or_nowhere

_BESIDE = ("-journal", "-wal", "-shm")


class Connection(Protocol):
    """Of SQLite."""

    def backup(self, target: Connection) -> None:
        """Copies the database, with what others are writing to it."""

    def close(self) -> None:
        """Ends the connection."""


def divert_sqlite(overlay: Overlay, module: ModuleType) -> None:
    """A database of the user's that isn't opened for reading only is copied first."""
    for place in (module.dbapi2, module):
        patch(place, "connect", lambda original: _connect(overlay, original))


def _connect(overlay: Overlay, original: Callable[..., Connection]) -> Callable[..., Connection]:
    def copy(source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
        old = original(f"file:{urllib.parse.quote(source)}?mode=ro", uri=True)
        new = original(target)
        try:
            old.backup(new)
        finally:
            old.close()
            new.close()

    def writing(path: object) -> object:
        place = overlay.for_writing(path, keep_content=True, copy=copy)
        for end in ("", *_BESIDE):
            name = overlay.absolute(place)
            overlay.will_make(None if name is None else name + end)
        return place

    def led(database: object, uri: bool) -> object:
        text = database if isinstance(database, str) else ""
        if text in (":memory:", "") and isinstance(database, (str, bytes)) and database in (":memory:", "", b""):
            return database
        if not (uri and text.startswith("file:")):
            return writing(database)
        parts = urllib.parse.urlsplit(text)
        options = urllib.parse.parse_qs(parts.query)
        path = urllib.parse.unquote(parts.path)
        if not path or path == ":memory:" or options.get("mode") == ["memory"]:
            return database
        reads = options.get("mode") == ["ro"] or options.get("immutable") == ["1"]
        place = overlay.loading(path) if reads else writing(path)
        return database if place == path else f"file:{urllib.parse.quote(str(place))}?{parts.query}"

    def connect(database: object, *args: object, **kwargs: object) -> Connection:
        uri = bool(args[6] if len(args) > 6 else kwargs.get("uri", False))
        return original(led(database, uri), *args, **kwargs)

    return connect


def divert_lmdb(overlay: Overlay, module: ModuleType) -> None:
    """As with SQLite. ``lmdb.Environment`` itself, which is the same class, stays: instances are asked for it."""
    patch(module, "open", lambda original: _open_lmdb(overlay, original))


def _open_lmdb(overlay: Overlay, original: Callable[..., Any]) -> Callable[..., Any]:
    def open(
        path: str, map_size: int = 10 * 2**20, subdir: bool = True, readonly: bool = False, *args: object,
        **kwargs: object,
    ) -> object:  # fmt: skip
        name = overlay.absolute(path)
        if name is None:
            return original(path, map_size, subdir, readonly, *args, **kwargs)

        def copy(source: str, target: str) -> None:
            old = original(source, map_size, False, True, lock=False)
            try:
                old.copy(target)
            finally:
                old.close()

        file = os.path.join(name, "data.mdb") if subdir else name
        if readonly:
            place = str(or_nowhere(overlay, overlay.loading)(file))
        else:
            if subdir:
                folder = place_for(overlay, name)
                with overlay.working():
                    overlay.make_folders(folder)
            place = overlay.for_writing(file, keep_content=True, copy=copy)
            for made in (place, os.path.join(os.path.dirname(place), "lock.mdb") if subdir else f"{place}-lock"):
                overlay.will_make(made)
        meant = path if place == file else os.path.dirname(place) if subdir else place
        return original(meant, map_size, subdir, readonly, *args, **kwargs)

    return open
