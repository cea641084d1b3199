"""SQLite's databases, which are opened for writing and mostly read."""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from collections.abc import Callable
from types import ModuleType
from typing import Protocol

from ..files import Overlay
from ..patches import patch

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
