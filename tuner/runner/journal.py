"""A trial's records as its process sends them: kept raw on disk, and decoded as far as deadlines need."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from tuner.child.wire import Entry, decode
from tuner.storage.folder import LATE_RECORDS, RECORDS


class Journal:
    """The child's records: kept raw on disk as they come, and decoded as far as the deadlines need.

    What comes once the trial is being ended is no evidence: a script may turn our TERM into an exception of its own. It
    is kept in a file of its own, so that whoever derives the figures again has the same records.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] = (folder / RECORDS).open("wb", buffering=0)
        self._ended = False
        self._torn = b""
        self.entries: list[Entry] = []

    def end(self) -> None:
        """What comes from here on doesn't count."""
        self._ended = True

    def feed(self, data: bytes) -> list[Entry]:
        """Stores what came and returns the records completed by it. Raises ``OSError`` on a full disk."""
        if self._ended:
            with (self._folder / LATE_RECORDS).open("ab") as late:
                late.write(data)
            return []
        left = memoryview(data)
        while left:  # a disk that is filling up takes a part, and only then refuses
            left = left[self._file.write(left) :]
        *lines, self._torn = (self._torn + data).split(b"\n")
        new = list(decode(lines))
        self.entries += new
        return new

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
