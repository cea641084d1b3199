"""What a file format for a study's result has to offer."""

from __future__ import annotations

from typing import Protocol

from tuner.result import StudyResult


class Exporter(Protocol):
    """One file in the study's folder. It reads and writes nothing itself: bytes come in and go out."""

    @property
    def name(self) -> str:
        """What the closing summary calls the file, in a word or two."""

    @property
    def file_name(self) -> str:
        """The file's name in the study's folder."""

    def check(self, existing: bytes, place: str) -> None:
        """Raises ``AutotuneError`` where ``serialize`` couldn't add to what the file at ``place`` already holds.

        Called before the first trial: hours later would be too late to say so.
        """

    def serialize(self, result: StudyResult, existing: bytes | None) -> bytes | None:
        """The file's new content; None where the result says nothing that belongs into it.

        ``existing`` is what the file holds now, None where there is no file.
        """
