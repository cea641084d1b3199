"""Text that may quote a file which is anybody's, made safe for a terminal."""

from __future__ import annotations


def printable(text: str, *, lines: bool = False) -> str:
    """The text with a question mark for each character that would do something to a terminal.

    ``lines``: whether line breaks are the text's own, and stay.
    """
    return "".join(each if each.isprintable() or (lines and each == "\n") else "?" for each in text)
